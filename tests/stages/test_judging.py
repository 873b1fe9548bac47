"""The object that a cascade calls in rounds."""

from __future__ import annotations

from lancer.engines.protocols import Generation, Sampling
from lancer.prompts.judge import LAYOUTS
from lancer.stages.judging import Judging, Query
from lancer.stages.readouts import Digit, Likelihood, Outcome, Readout
from lancer.stages.room import Pieces
from tests.scripted import ScriptedText


def judging(
    text: ScriptedText, *queries: Query, layout: str = "shared-prefix", readout: Readout | None = None
) -> Judging:
    per_document = LAYOUTS[layout].per_document
    digit = Digit(per_document=per_document, structured=True, max_tokens=None, temperature=0.0, seed=0)
    return Judging(queries, text, LAYOUTS[layout], readout or digit, pad=True, attempts=2)


def query(name: str = "q", sub_questions: int = 2, pieces: list[Pieces | None] | None = None) -> Query:
    pieces = [Pieces(("one",)), None, Pieces(("two",))] if pieces is None else pieces
    return Query(name, "the request", [f"{name}{j}?" for j in range(sub_questions)], pieces)


def test_only_the_cells_that_are_asked_for_and_not_known_are_judged() -> None:
    text, own = ScriptedText(lambda prompt, sampling: "3"), query()
    panel = judging(text, own)
    assert own.cells == [(0, 0), (0, 1), (2, 0), (2, 1)]
    panel.ask([{(2, 1)}])
    panel.ask([[(0, 0), (2, 1)]])
    assert [len(prompts) for prompts, _, _ in text.calls] == [1, 1]
    assert own.outcome((0, 0)) == own.outcome((2, 1)) == Outcome(3, "3")
    assert own.outcome((0, 1)) is None
    assert [(r.attempt, r.calls, r.pairs) for r in panel.ledger(stage="judge", engine="llm")] == [(1, 2, 2)]


def test_a_failed_call_is_not_made_again() -> None:
    text, own = ScriptedText(lambda prompt, sampling: Generation(text="", error="too long")), query()
    panel = judging(text, own)
    panel.ask([own.cells])
    panel.ask([own.cells])
    assert len(text.calls) == 1


def test_per_document_what_is_missing_is_asked_alone_and_goes_to_its_own_cells() -> None:
    def answer(prompt: str, sampling: Sampling) -> str:
        return '{"1": 5, "3": 1}' if "1. q0?\n2. q1?\n3. q2?" in prompt else '{"1": 4}'

    text, own = ScriptedText(answer), query(sub_questions=3, pieces=[Pieces(("one",))])
    panel = judging(text, own, layout="per-document")
    panel.ask([own.cells])
    assert [o.value for c in own.cells if (o := own.outcome(c))] == [5, 4, 1]
    (first,), (second,) = (prompts for prompts, _, _ in text.calls)
    assert "1. q1?\n</questions>" in second
    assert "from 1 to 1 once" in second
    assert "from 1 to 3 once" not in first
    assert [(r.attempt, r.calls, r.pairs) for r in panel.ledger(stage="judge", engine="llm")] == [(1, 1, 3), (2, 1, 1)]


def test_queries_of_another_number_of_sub_questions_have_another_schema() -> None:
    text = ScriptedText(lambda prompt, sampling: '{"1": 2, "2": 2, "3": 2}'[: 8 if "2. " not in prompt else 99])
    two, three = query("a", 2), query("b", 3)
    judging(text, two, three, layout="per-document").ask([two.cells, three.cells])
    schemas = [sampling.json_schema or "" for _, sampling, _ in text.calls]
    assert ['"3"' in schema for schema in schemas[:2]] == [False, True]


def test_the_windows_of_a_document_are_neighbours_and_one_pair() -> None:
    ratings = {"one": "1", "two": "4", "three": "2"}
    text = ScriptedText(lambda prompt, sampling: next(r for w, r in ratings.items() if f"\n{w}\n" in prompt))
    own = query(pieces=[Pieces(("one", "two", "three"))])
    panel = judging(text, own)
    panel.ask([own.cells])
    shown = [next(w for w in ratings if f"\n{w}\n" in prompt) for prompt in text.calls[0][0]]
    assert shown == ["one", "one", "two", "two", "three", "three"]
    assert [own.outcome(c) for c in own.cells] == [Outcome(4, "4")] * 2
    assert [(r.calls, r.pairs) for r in panel.ledger(stage="judge", engine="llm")] == [(6, 2)]


def nats(prompt: str, sampling: Sampling) -> Generation:
    document = prompt.split("<document>\n")[1].split("\n</document>")[0]
    return Generation(text="", logprobs=(-1.0 if document == "one" else -2.0 if document else -3.0,))


def test_the_sub_question_by_itself_is_scored_once() -> None:
    text, own = ScriptedText(nats), query()
    panel = judging(text, own, readout=Likelihood("sub_question"))
    panel.ask([own.cells[:1]])
    panel.ask([own.cells])
    assert [len(prompts) for prompts, _, _ in text.calls] == [1 + 1, 1 + 3]
    assert [o.raw for c in own.cells if (o := own.outcome(c))] == ["2.00000", "2.00000", "1.00000", "1.00000"]
    assert [(r.calls, r.pairs) for r in panel.ledger(stage="judge", engine="llm")] == [(6, 4)]


def test_with_the_question_first_the_document_by_itself_is_scored_once() -> None:
    def answer(prompt: str, sampling: Sampling) -> Generation:
        return Generation(text="", logprobs=(-1.0 if "q1?" in prompt else -1.5 if "q0?" in prompt else -2.0,))

    text, own = ScriptedText(answer), query()
    judging(text, own, layout="published", readout=Likelihood("document")).ask([own.cells])
    assert len(text.calls[0][0]) == 2 + 4
    assert [o.raw for c in own.cells if (o := own.outcome(c))] == ["0.50000", "1.00000"] * 2
