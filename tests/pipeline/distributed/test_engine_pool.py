from __future__ import annotations

import pytest

from lancer.pipeline.distributed.engine_pool import affinity
from lancer.prompts import decompose, judge


@pytest.mark.parametrize("layout", ["shared-prefix", "published"])
def test_the_prompts_of_a_document_go_to_one_replica_and_those_of_others_do_not(layout: str) -> None:
    def key(request: str, document: str, question: str) -> str:
        rendered = judge.render(request=request, document=document, sub_question=question, layout=judge.LAYOUTS[layout])
        return affinity(rendered)

    assert key("r", "one", "a?") == key("r", "one", "b?")
    assert key("r", "one", "a?") != key("r", "two", "a?")
    if layout == "shared-prefix":  # the published layout shares nothing of a request
        assert key("r", "one", "a?") != key("s", "one", "a?")


def test_other_prompts_are_spread_by_what_they_say() -> None:
    assert affinity(decompose.render(text="a", n=2)) != affinity(decompose.render(text="b", n=2))
