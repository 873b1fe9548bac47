"""The columns of a run: one row per query, lists inside, under pinned Arrow types.

Each stage reads some of these fields and adds others (`lancer.stages.base`). A matrix is two-dimensional, candidates x
sub-questions, as a list of rows; null is a cell without a value, whose status says why. `SCHEMA_VERSION` enters every
stage fingerprint: change it with any change of meaning here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 5

FIRST_STAGE: Final = "first-stage"  # where a selector's name is asked for and none selected
RERANK: Final = "rerank"  # the same, after reranking alone; `rerank.<name>` is one of its steps

RATING_SCALE: Final = (0, 5)
PROBABILITY_SCALE: Final = (0.0, 1.0)


class Scale(StrEnum):
    """What the numbers of a coverage matrix are; tau is given in this scale."""

    rating = "rating"
    probability = "probability"

    @property
    def maximum(self) -> float:
        """The highest value of the scale: 5 or 1."""
        return 5.0 if self is Scale.rating else 1.0


class CellStatus(StrEnum):
    """Why a matrix cell has, or has not, a value."""

    ok = "ok"
    unreadable = "unreadable"  # the model's output holds no rating
    no_text = "no_text"  # the candidate has no document text: never scored
    error = "error"  # the engine failed on this cell
    not_kept = "not_kept"  # reranking kept other candidates: never scored, and in no coverage table
    estimated = "estimated"  # not judged: the value is the estimator's, in the scale of ratings


class DecomposeStatus(StrEnum):
    """How a query got its sub-questions."""

    given = "given"
    ok = "ok"
    too_few = "too_few"  # fewer than asked for after all attempts; those found are used
    failed = "failed"  # none


class CompressStatus(StrEnum):
    """What became of a document that was to be compressed."""

    ok = "ok"  # some of its sentences stay
    nothing = "nothing"  # none helps: it adds nothing to an answer
    unreadable = "unreadable"  # the model's output names no sentences: the whole document stays
    error = "error"  # the engine failed on it: the whole document stays
    no_text = "no_text"


CANDIDATE: Final = pa.struct(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("has_text", pa.bool_(), nullable=False),
    ]
)
SUB_QUESTION: Final = pa.struct(
    [pa.field("id", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)]
)
RANKING: Final = pa.struct(
    [
        pa.field("selector", pa.string(), nullable=False),  # its repr; parses back
        pa.field("doc_ids", pa.list_(pa.string()), nullable=False),  # best first, every candidate once
        pa.field(
            "covers", pa.list_(pa.list_(pa.string())), nullable=False
        ),  # per document: sub-question ids it newly covers
        pa.field("uncovered", pa.list_(pa.string()), nullable=False),  # sub-question ids no candidate covers
    ]
)

SPAN: Final = pa.struct(  # text[start:end] of the document's text, title and body, in characters
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("score", pa.float32()),  # the bi-encoder's; null where an LLM chose, or nothing did
    ]
)
SPANS: Final = pa.list_(pa.field("item", SPAN, nullable=False))  # whole sentences, in the text's order
COMPRESSED_DOCUMENT: Final = pa.struct(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("characters", pa.int32(), nullable=False),  # of the whole document
        pa.field("text", pa.string(), nullable=False),  # of the spans, a blank between two
        pa.field("spans", SPANS, nullable=False),
        pa.field("raw", pa.string(), nullable=False),  # the model's last output; "" = no call
    ]
)
ORDER: Final = pa.struct(
    [
        pa.field("doc_ids", pa.list_(pa.string()), nullable=False),  # best first, every candidate once
        pa.field("scores", pa.list_(pa.float64()), nullable=False),  # beside doc_ids; null = none
        pa.field("kept", pa.int32(), nullable=False),  # so many of the first go on to later stages
        pa.field("raw", pa.list_(pa.string()), nullable=False),  # what the model answered, call by call
    ]
)

QUERY_ID: Final = pa.field("query_id", pa.string(), nullable=False)
TEXT: Final = pa.field("text", pa.string(), nullable=False)
TITLE: Final = pa.field("title", pa.string())
BACKGROUND: Final = pa.field("background", pa.string())
PROBLEM_STATEMENT: Final = pa.field("problem_statement", pa.string())
GIVEN_CANDIDATES: Final = pa.field(
    "given_candidates",
    pa.list_(pa.struct([pa.field("doc_id", pa.string(), nullable=False), pa.field("score", pa.float64())])),
)
GIVEN_SUB_QUESTIONS: Final = pa.field("given_sub_questions", pa.list_(SUB_QUESTION))

CANDIDATES: Final = pa.field("candidates", pa.list_(CANDIDATE), nullable=False)  # in first-stage order
SUB_QUESTIONS: Final = pa.field("sub_questions", pa.list_(SUB_QUESTION), nullable=False)
DECOMPOSE_STATUS: Final = pa.field("decompose_status", pa.string(), nullable=False)
DECOMPOSE_RAW: Final = pa.field("decompose_raw", pa.list_(pa.string()), nullable=False)  # one text per attempt
RATINGS: Final = pa.field("ratings", pa.list_(pa.list_(pa.float32())), nullable=False)
RATING_STATUS: Final = pa.field("rating_status", pa.list_(pa.list_(pa.string())), nullable=False)
RATING_RAW: Final = pa.field("rating_raw", pa.list_(pa.list_(pa.string())), nullable=False)  # "" = no call
PROBABILITIES: Final = pa.field("probabilities", pa.list_(pa.list_(pa.float32())), nullable=False)
PROBABILITY_STATUS: Final = pa.field("probability_status", pa.list_(pa.list_(pa.string())), nullable=False)
PROBABILITY_RAW: Final = pa.field("probability_raw", pa.list_(pa.list_(pa.string())), nullable=False)  # "" = no call
# Of each candidate's text, the characters left out of the judge's prompts: 0 = judged whole; null = no text.
CUT_CHARACTERS: Final = pa.field("cut_characters", pa.list_(pa.int32()), nullable=False)
RANKINGS: Final = pa.field("rankings", pa.list_(RANKING), nullable=False)
COMPRESSED: Final = pa.field("compressed", pa.list_(COMPRESSED_DOCUMENT), nullable=False)  # the top documents, in order


def order_field(name: str) -> pa.Field:
    """The column of a named order of the candidates, which stay as they are."""
    return pa.field(f"order.{name}", ORDER, nullable=False)


# Beside what a stage reads, only where failed rows are retried: what was answered for this row could not be used.
RETRY: Final = pa.field("retry", pa.bool_(), nullable=False)

INPUT_SCHEMA: Final = pa.schema(
    [QUERY_ID, TEXT, TITLE, BACKGROUND, PROBLEM_STATEMENT, GIVEN_CANDIDATES, GIVEN_SUB_QUESTIONS]
)

LEDGER_SCHEMA: Final = pa.schema(
    [
        QUERY_ID,
        pa.field("stage", pa.string(), nullable=False),
        pa.field("attempt", pa.int16(), nullable=False),  # from 1
        pa.field("engine", pa.string(), nullable=False),  # name in the config; "" = no engine
        pa.field("calls", pa.int64(), nullable=False),  # made now; so are all counts and seconds below
        pa.field("pairs", pa.int64(), nullable=False),  # (document, sub-question) pairs
        pa.field("prompt_tokens", pa.int64(), nullable=False),  # cached ones included
        pa.field("cached_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("queue_s", pa.float64(), nullable=False),  # summed over calls
        pa.field("run_s", pa.float64(), nullable=False),  # summed over calls; calls overlap
        pa.field("latency_p50_s", pa.float64()),  # of calls, queue + run; null = no call
        pa.field("latency_p95_s", pa.float64()),
        pa.field("latency_max_s", pa.float64()),
        pa.field("reused_calls", pa.int64(), nullable=False),  # answered from earlier calls: paid already
        pa.field("reused_tokens", pa.int64(), nullable=False),  # prompt and output tokens of those
        pa.field("reused_cached_tokens", pa.int64(), nullable=False),  # among them
        pa.field("reused_output_tokens", pa.int64(), nullable=False),
        # Of the calls made now, inputs that were not shown whole: documents before an LLM that reranks, texts of a
        # bi-encoder, pairs of a cross-encoder. What the judge did not see is in `cut_characters`.
        pa.field("cut_inputs", pa.int64(), nullable=False),
    ]
)
FAILURE_SCHEMA: Final = pa.schema(
    [
        QUERY_ID,
        pa.field("stage", pa.string(), nullable=False),
        pa.field("attempt", pa.int16(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # a short fixed word
        pa.field("detail", pa.string(), nullable=False),
        pa.field("input_digest", pa.string(), nullable=False),  # of the row as its stage read it
    ]
)

RANKING_SCHEMA: Final = pa.schema(
    [
        QUERY_ID,
        pa.field("selector", pa.string(), nullable=False),  # or `rerank.<name>`, a named order; `rerank`, the last one
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),  # from 1
        pa.field("score", pa.float64(), nullable=False),  # strictly decreasing with rank
        pa.field("first_stage_rank", pa.int32(), nullable=False),
        pa.field("covers", pa.list_(pa.string()), nullable=False),
        pa.field("kept", pa.bool_(), nullable=False),  # false: reranking put it behind, no later stage sees it
    ]
)
COVERAGE_SCHEMA: Final = pa.schema(
    [
        QUERY_ID,
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("first_stage_rank", pa.int32(), nullable=False),
        pa.field("sub_question_id", pa.string(), nullable=False),
        pa.field("sub_question", pa.string(), nullable=False),
        pa.field("rating", pa.float32()),  # scale rating, 0..5; whole where the model wrote a digit
        pa.field("probability", pa.float32()),  # scale probability, 0..1
        pa.field("status", pa.string(), nullable=False),
        pa.field("raw", pa.string(), nullable=False),
        pa.field("cut_characters", pa.int32()),  # of the document, not shown to the judge; null = not judged
    ]
)
COMPRESSED_SCHEMA: Final = pa.schema(
    [
        QUERY_ID,
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),  # from 1
        pa.field("status", pa.string(), nullable=False),
        pa.field("characters", pa.int32(), nullable=False),  # of the whole document
        pa.field("text", pa.string(), nullable=False),
        pa.field("spans", SPANS, nullable=False),
        pa.field("raw", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class MatrixFields:
    """The columns of a coverage matrix in one scale."""

    values: pa.Field
    status: pa.Field
    raw: pa.Field


MATRIX: Final = {
    Scale.rating: MatrixFields(RATINGS, RATING_STATUS, RATING_RAW),
    Scale.probability: MatrixFields(PROBABILITIES, PROBABILITY_STATUS, PROBABILITY_RAW),
}
