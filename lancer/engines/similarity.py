"""What a bi-encoder makes of two texts' vectors: a number from 0 to 1 per (document, sub-question).

Products are in doubles: after rounding to float32 they do not depend on where in the matrix a pair is. Negative cosines
count as 0 everywhere, so all three share one scale; none of them is a calibrated probability.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


def cosine(documents: FloatArray, sub_questions: FloatArray) -> FloatArray:
    """Of unit vectors (documents, dimensions) and (sub-questions, dimensions): (documents, sub-questions)."""
    products = documents.astype(np.float64) @ sub_questions.astype(np.float64).T
    return _clipped(products)


def best_sentence(vectors: FloatArray, sentences: Sequence[int], sub_questions: FloatArray) -> FloatArray:
    """The highest cosine over the sentences of each document; `sentences` counts them, each at least one.

    `vectors` (sentences of all documents, dimensions) are in the order of the documents.
    """
    if not len(sentences):
        return np.empty((0, len(sub_questions)), np.float32)
    starts = np.cumsum(sentences, dtype=np.int64) - np.asarray(sentences, np.int64)
    highest: FloatArray = np.maximum.reduceat(cosine(vectors, sub_questions), starts, axis=0)
    return highest


def late_interaction(documents: Sequence[FloatArray], sub_questions: Sequence[FloatArray]) -> FloatArray:
    """MaxSim (ColBERT; Khattab and Zaharia, SIGIR 2020), as the mean over the sub-question's tokens instead of the sum.

    Each token of a sub-question counts with its highest cosine among the document's tokens, negative ones as 0. Inputs
    are unit vectors (tokens, dimensions) of each text; a text without tokens scores 0.
    """
    scores = np.zeros((len(documents), len(sub_questions)), np.float32)
    asked = [j for j, tokens in enumerate(sub_questions) if len(tokens)]
    if not asked:
        return scores
    lengths = np.array([len(sub_questions[j]) for j in asked])
    starts = np.cumsum(lengths) - lengths
    wide = np.concatenate([sub_questions[j] for j in asked]).astype(np.float64)
    for i, tokens in enumerate(documents):
        if len(tokens):
            highest = np.clip((wide @ tokens.astype(np.float64).T).max(axis=1), 0.0, 1.0)
            scores[i, asked] = np.add.reduceat(highest, starts) / lengths
    return scores


def _clipped(values: npt.NDArray[np.float64]) -> FloatArray:
    return np.clip(values, 0.0, 1.0).astype(np.float32)
