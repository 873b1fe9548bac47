"""What was answered is asked once: after a kill, after a failure, by another run, and never from a damaged file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.errors import EngineDied
from lancer.pipeline import journal as module
from lancer.pipeline.journal import CHUNK, Journal, JournalledText, call_prefix
from lancer.storage import Storage
from tests.scripted import ScriptedText

SAMPLING = Sampling(max_tokens=3)


def prompts(*texts: str) -> list[list[Message]]:
    return [[{"role": "user", "content": text}] for text in texts]


def journal(folder: Path) -> Journal:
    """A journal that knows what others left in the folder."""
    return Journal(Storage(), str(folder), "01", sorted(str(p) for p in folder.glob("*.parquet")))


def answered(folder: Path, *texts: str) -> ScriptedText:
    """An engine that was asked `texts` through a journal, which was then closed."""
    engine, own = ScriptedText(lambda text, sampling: f"answer to {text}"), journal(folder)
    JournalledText(engine, own).generate(prompts(*texts), SAMPLING)
    own.close()
    return engine


def asked(engine: ScriptedText) -> list[str]:
    return sorted(text for texts, _, _ in engine.calls for text in texts)


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    answered(tmp_path, "a", "b")
    engine = ScriptedText(lambda text, sampling: f"new answer to {text}")
    generations = JournalledText(engine, journal(tmp_path)).generate(prompts("a", "c", "b"), SAMPLING)
    assert [(g.text, g.reused) for g in generations] == [
        ("answer to a", True),
        ("new answer to c", False),
        ("answer to b", True),
    ]
    assert (generations[0].prompt_tokens, generations[0].cached_tokens, generations[0].output_tokens) == (10, 4, 1)
    assert asked(engine) == ["c"]


def test_another_sampling_is_another_question(tmp_path: Path) -> None:
    answered(tmp_path, "a")
    engine = ScriptedText(lambda text, sampling: "other")
    for sampling in (Sampling(max_tokens=4), Sampling(max_tokens=3, temperature=0.5), Sampling(max_tokens=3, seed=1)):
        JournalledText(engine, journal(tmp_path)).generate(prompts("a"), sampling)
    assert len(asked(engine)) == 2, "a seed has no effect at temperature 0"


def test_a_failed_call_is_asked_again(tmp_path: Path) -> None:
    first = journal(tmp_path)
    broken = ScriptedText(lambda text, sampling: Generation(text="", error="too long") if text == "b" else "fine")
    JournalledText(broken, first).generate(prompts("a", "b"), SAMPLING)
    first.close()
    engine = ScriptedText(lambda text, sampling: "mended")
    generations = JournalledText(engine, journal(tmp_path)).generate(prompts("a", "b"), SAMPLING)
    assert [g.text for g in generations] == ["fine", "mended"]
    assert asked(engine) == ["b"]


def test_answers_are_written_while_a_shard_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    open_journal = journal(tmp_path)
    text = JournalledText(ScriptedText(lambda text, sampling: text.upper()), open_journal)
    for letter in "abc":
        text.generate(prompts(letter), SAMPLING)
    engine = ScriptedText(lambda text, sampling: "again")
    generations = JournalledText(engine, journal(tmp_path)).generate(prompts("a", "b", "c"), SAMPLING)
    assert [g.text for g in generations] == ["A", "B", "C"], "a kill now loses nothing"
    assert len(list(tmp_path.iterdir())) == 3

    open_journal.close()
    assert len(list(tmp_path.iterdir())) == 1, "one file per shard in the end"
    again = JournalledText(engine, journal(tmp_path)).generate(prompts("a", "b", "c"), SAMPLING)
    assert [g.text for g in again] == ["A", "B", "C"]
    assert not engine.calls


def test_a_file_that_its_writer_has_put_together_with_others_is_found_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    writer = journal(tmp_path)
    text = JournalledText(ScriptedText(lambda text, sampling: text.upper()), writer)
    for letter in "ab":
        text.generate(prompts(letter), SAMPLING)
    late = journal(tmp_path)  # of a run that shares the store, and listed it before
    writer.close()
    engine = ScriptedText(lambda text, sampling: "asked again")
    generations = JournalledText(engine, late).generate(prompts("a", "b"), SAMPLING)
    assert [(g.text, g.reused) for g in generations] == [("A", True), ("B", True)]
    assert not engine.calls


def test_a_file_that_is_gone_for_good_is_no_error(tmp_path: Path) -> None:
    answered(tmp_path, "a")
    late = journal(tmp_path)
    next(tmp_path.iterdir()).unlink()
    engine = ScriptedText(lambda text, sampling: "asked again")
    assert JournalledText(engine, late).generate(prompts("a"), SAMPLING)[0].text == "asked again"


@pytest.mark.parametrize("kind", ["torn", "bit", "empty", "foreign"])
def test_a_damaged_file_is_never_believed(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    answered(tmp_path / "other", "x")
    answered(tmp_path, "a")
    file = next(p for p in tmp_path.iterdir() if p.is_file())
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    foreign = next((tmp_path / "other").iterdir()).read_bytes()
    file.write_bytes({"torn": whole[:-20], "bit": bytes(flipped), "empty": b"", "foreign": foreign}[kind])
    engine = ScriptedText(lambda text, sampling: "asked again")
    assert JournalledText(engine, journal(tmp_path)).generate(prompts("a"), SAMPLING)[0].text == "asked again"
    assert f"{file} is damaged" in caplog.text


FRESH = Sampling(max_tokens=3, temperature=0.5, seed=7, fresh=True)


def seeds_of(engine: ScriptedText) -> list[int]:
    return [sampling.seed for _, sampling, _ in engine.calls]


def test_what_is_asked_afresh_counts_from_then_on(tmp_path: Path) -> None:
    plain = replace(FRESH, fresh=False)
    for number in range(3):
        engine, own = ScriptedText(lambda text, s, n=number: f"{text}{n}"), journal(tmp_path)  # type: ignore[misc]
        text = JournalledText(engine, own)
        if number == 0:
            text.generate(prompts("a", "b"), plain)
        else:
            assert [g.text for g in text.generate(prompts("a"), plain)] == [f"a{number - 1}"], "the last answer"
            assert [(g.text, g.reused) for g in text.generate(prompts("a"), FRESH)] == [(f"a{number}", False)]
            text.generate(prompts("a"), FRESH)
        own.close()
        assert len(engine.calls) == 1, "once per journal, also when a stage has to begin again"
        assert seeds_of(engine) == [7 + number], "with a seed of its own"
        assert not any(sampling.fresh for _, sampling, _ in engine.calls)
    late = JournalledText(ScriptedText(lambda text, sampling: "never asked"), journal(tmp_path))
    assert [(g.text, g.reused) for g in late.generate(prompts("a", "b"), plain)] == [("a2", True), ("b0", True)]


def test_prompts_that_were_asked_differently_often_go_out_apart(tmp_path: Path) -> None:
    for texts in (("a",), ("a", "b"), ("a", "b", "c")):
        engine, own = ScriptedText(lambda text, sampling: str(sampling.seed)), journal(tmp_path)
        generations = JournalledText(engine, own).generate(prompts(*texts), FRESH)
        own.close()
    assert [g.text for g in generations] == ["10", "9", "8"]


def test_after_an_engine_died_only_what_it_did_not_answer_is_asked_again(tmp_path: Path) -> None:
    texts = [f"prompt {i}" for i in range(2 * CHUNK + 1)]
    first_chunk_done = threading.Event()
    engine = _DyingText(first_chunk_done, dies_on=texts[-1])
    own = journal(tmp_path)
    with pytest.raises(EngineDied):
        JournalledText(engine, own).generate(prompts(*texts), SAMPLING)
    assert len(engine.answered) == 2 * CHUNK
    engine.dies_on = ""
    engine.answered.clear()
    generations = JournalledText(engine, own).generate(prompts(*texts), SAMPLING)
    assert engine.answered == [texts[-1]]
    assert [g.text for g in generations] == texts
    assert not any(g.reused for g in generations), "the ledger of the failed call is lost: this one counts them all"


def test_what_other_replicas_answered_of_a_call_that_failed_is_kept(tmp_path: Path) -> None:
    """A call goes to several replicas; of those that live there are answers in the error."""
    own = journal(tmp_path)
    with pytest.raises(EngineDied):
        JournalledText(_HalfDead(), own).generate(prompts("a", "b", "c"), SAMPLING)
    own.close()
    second = ScriptedText(lambda text, sampling: "second")
    generations = JournalledText(second, journal(tmp_path)).generate(prompts("a", "b", "c"), SAMPLING)
    assert [(g.text, g.reused) for g in generations] == [("first", True), ("second", False), ("first", True)]
    assert asked(second) == ["b"]


class _HalfDead:
    """Answers all prompts but the second, and dies of that."""

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        raise EngineDied("killed", answered={i: Generation(text="first") for i in range(len(prompts)) if i != 1})


class _DyingText:
    """Dies on one prompt, when it has answered the other chunks or at once."""

    def __init__(self, others: threading.Event, dies_on: str) -> None:
        self.others, self.dies_on = others, dies_on
        self.answered: list[str] = []
        self._lock = threading.Lock()

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        texts = [p[-1]["content"] for p in prompts]
        if self.dies_on in texts:
            raise EngineDied("killed")
        self.others.wait(0.2)
        with self._lock:
            self.answered.extend(texts)
        return [Generation(text=text) for text in texts]


def test_many_prompts_go_out_in_chunks_and_come_back_in_order(tmp_path: Path) -> None:
    texts = [f"prompt {i}" for i in range(5 * CHUNK + 7)]
    engine = ScriptedText(lambda text, sampling: text[::-1])
    generations = JournalledText(engine, journal(tmp_path)).generate(prompts(*texts), SAMPLING, priority=2)
    assert [g.text for g in generations] == [t[::-1] for t in texts]
    assert sorted(len(chunk) for chunk, _, _ in engine.calls) == [7, *[CHUNK] * 5]
    assert {priority for _, _, priority in engine.calls} == {2}


def test_the_shard_prefix_stands_in_the_file_name(tmp_path: Path) -> None:
    answered(tmp_path, "a")
    assert [call_prefix(str(p)) for p in tmp_path.iterdir()] == ["01"]
