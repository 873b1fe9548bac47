"""What could not be read is asked again by a retry, and by nothing else; what could be read is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lancer import schema
from lancer.engines.protocols import Generation, Sampling
from lancer.pipeline.journal import Journal
from lancer.pipeline.journalled import JournalledEngines
from lancer.reranking.graded import GradedRerank
from lancer.stages.base import Stage, StageOutput, call
from lancer.stages.compress import Compress, CompressConfig
from lancer.stages.decompose import Decompose, DecomposeConfig
from lancer.stages.judge import Judge, JudgeConfig
from lancer.stages.rerank import Rerank
from lancer.storage import Storage
from tests.scripted import Engines, ScriptedText
from tests.stages.batches import requests, with_matrix_inputs

TEXTS = {"a": "It is of stone.", "b": "It is of fire.", "c": "It is of wood."}
ROWS = [
    {"query_id": "q1", "candidates": ["a", "c"], "sub_questions": ["one?"]},
    {"query_id": "q2", "text": "about fires", "candidates": ["b", "c"], "sub_questions": ["one?"]},
]
SUB_QUESTIONS = "1. How tall is it?\n2. Who built it?"


class Run:
    """A stage on a batch, again and again over one journal, as sessions do."""

    def __init__(self, folder: Path, stage: Stage, batch: pa.Table) -> None:
        self.folder, self.stage, self.batch = folder, stage, batch

    def session(
        self, answer: Callable[[str, Sampling], str | Generation], retry: Sequence[str] = ()
    ) -> tuple[pa.Table, StageOutput, list[str]]:
        """What the stage made, and the prompts that the engine saw."""
        engine = ScriptedText(answer)
        files = sorted(str(path) for path in self.folder.iterdir())
        journal = Journal(Storage(), str(self.folder), "all", files)
        batch = self.batch
        if retry:
            again = [query_id in retry for query_id in batch["query_id"].to_pylist()]
            batch = batch.append_column(schema.RETRY, pa.array(again))
        engines = JournalledEngines(Engines(text=engine, texts=TEXTS), {"llm": journal})
        table, output = call(self.stage, batch, engines)
        journal.close()
        return table, output, [text for texts, _, _ in engine.calls for text in texts]


def stage_of(name: str) -> tuple[Stage, pa.Table, str]:
    """A stage, a batch, and an answer that it can read."""
    stage: Stage
    if name == "decompose":
        batch = pa.concat_tables([requests("q1"), requests("q2", text="about fires")])
        return Decompose(DecomposeConfig(n=2)), batch, SUB_QUESTIONS
    if name == "judge":
        stage, good = Judge(JudgeConfig()), "4"
    elif name == "rerank":
        stage, good = Rerank(GradedRerank(engine="llm")), "3"
    else:
        stage, good = Compress(CompressConfig(method="llm", depth=2), selected=False), "[1]"
    return stage, with_matrix_inputs(stage, ROWS), good


@pytest.mark.parametrize("name", ["decompose", "judge", "rerank", "compress"])
def test_an_unreadable_answer_is_mended_by_a_retry_alone(tmp_path: Path, name: str) -> None:
    stage, batch, good = stage_of(name)
    run = Run(tmp_path, stage, batch)
    bad = "about fires" if name == "decompose" else "of fire"

    def mumbles(text: str, sampling: Sampling) -> str:
        return "well" if bad in text else good

    _, output, first = run.session(mumbles)
    assert {f.query_id for f in output.failures} == {"q2"}
    before, output, asked = run.session(lambda text, sampling: good)
    assert output.failures
    assert not asked, "a resume pays for nothing"

    _, output, asked = run.session(mumbles, retry=["q2"])
    assert output.failures
    assert 0 < len(asked) < len(first)
    assert all("q1" not in text for text in asked)

    mended, output, asked = run.session(lambda text, sampling: good, retry=["q2"])
    assert not output.failures
    if name == "rerank":  # what it asks depends on what was answered: all of that query
        assert len(asked) == 2
    else:
        assert len(asked) == 1
        assert bad in asked[0]
    assert mended.slice(0, 1) == before.slice(0, 1), "the other query is as it was"

    later, output, asked = run.session(lambda text, sampling: "never asked")
    assert not output.failures
    assert not asked
    assert later == mended, "a part that is lost is made again as the retry left it"


def test_a_decomposition_is_asked_again_with_a_new_seed(tmp_path: Path) -> None:
    """As an engine does whose answers follow from prompt and seed."""
    seeds: list[int] = []

    def by_seed(text: str, sampling: Sampling) -> str:
        seeds.append(sampling.seed)
        return SUB_QUESTIONS if sampling.seed == 4 else "How tall is it?"

    run = Run(tmp_path, Decompose(DecomposeConfig(n=2)), requests("q"))
    reasons = []
    for retry in ([], ["q"], ["q"], ["q"]):
        table, output, _ = run.session(by_seed, retry)
        reasons.append([f.reason for f in output.failures])
    assert seeds == [0, 1, 2, 3, 4]
    assert reasons == [["too_few"], ["too_few"], [], []]
    assert table["decompose_status"].to_pylist() == ["ok"]
    assert len(table["decompose_raw"].to_pylist()[0]) == 3, "the new answer is in the place of the last one"


def test_an_error_in_a_retry_loses_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, Decompose(DecomposeConfig(n=2)), requests("q"))
    before, _, _ = run.session(lambda text, sampling: "How tall is it?")

    def fails(text: str, sampling: Sampling) -> Generation:
        return Generation(text="", error="busy")

    table, output, _ = run.session(fails, ["q"])
    assert table == before
    assert [(f.attempt, f.reason) for f in output.failures] == [(3, "too_few"), (4, "call_error")]
