"""What a prefix cache finds, by hand: blocks of four."""

from __future__ import annotations

from lancer.engines.prefix_cache import PrefixCache


def test_whole_blocks_of_what_began_an_earlier_prompt_are_found() -> None:
    cache = PrefixCache(4)
    assert cache.take(range(10)) == 0
    assert cache.take([*range(9), 99, 98]) == 8
    assert cache.take([*range(7), 99, 98]) == 4, "the second block differs in its last token"
    assert cache.take([99, *range(1, 10)]) == 0


def test_the_last_token_is_computed_even_if_it_ends_a_block() -> None:
    cache = PrefixCache(4)
    cache.take(range(8))
    assert cache.take(range(8)) == 4
    assert cache.take(range(9)) == 8
    assert cache.take(range(3)) == 0


def test_a_block_counts_only_behind_the_same_beginning() -> None:
    cache = PrefixCache(2)
    cache.take([1, 2, 3, 4, 5])
    assert cache.take([9, 9, 3, 4, 5]) == 0
    assert cache.take([1, 2, 7, 7, 3, 4, 5]) == 2
