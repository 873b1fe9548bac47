"""The three similarities by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lancer.engines.similarity import best_sentence, cosine, late_interaction

EAST, NORTH = (1.0, 0.0), (0.0, 1.0)
WEST, NORTH_EAST = (-1.0, 0.0), (0.6, 0.8)


def of(*vectors: tuple[float, float]) -> npt.NDArray[np.float32]:
    return np.array(vectors, np.float32).reshape(-1, 2)


def test_cosines_below_zero_count_as_zero() -> None:
    scores = cosine(of(EAST, WEST, NORTH_EAST), of(EAST, NORTH))
    assert np.allclose(scores, np.array([[1, 0], [0, 0], [0.6, 0.8]]), atol=1e-7)
    assert scores.dtype == np.float32


def test_the_best_sentence_of_each_document() -> None:
    scores = best_sentence(of(EAST, NORTH, NORTH_EAST, WEST), [2, 1, 1], of(EAST, NORTH))
    assert np.allclose(scores, np.array([[1, 1], [0.6, 0.8], [0, 0]]), atol=1e-7)
    assert best_sentence(of(), [], of(EAST)).shape == (0, 1)
    assert best_sentence(of(EAST), [1], of()).shape == (1, 0)


def test_late_interaction_is_the_mean_over_the_sub_questions_tokens_of_their_best_match() -> None:
    documents = [of(EAST, NORTH_EAST), of(WEST), of()]
    sub_questions = [of(EAST, NORTH), of(), of(WEST)]
    scores = late_interaction(documents, sub_questions)
    assert np.allclose(scores, np.array([[(1 + 0.8) / 2, 0, 0], [0, 0, 1], [0, 0, 0]]), atol=1e-7)
    assert late_interaction([], sub_questions).shape == (0, 3)
    assert late_interaction(documents, []).shape == (3, 0)
    assert late_interaction(documents, [of()]).tolist() == [[0.0]] * 3


def test_what_is_no_number_stays_none() -> None:
    broken = of((np.nan, 0.0))
    assert np.isnan(cosine(of(EAST), broken)).all()
    assert np.isnan(late_interaction([broken, of(EAST)], [of(EAST)])).tolist() == [[True], [False]]
    assert np.isnan(best_sentence(np.concatenate([broken, of(EAST)]), [2], of(EAST))).all()
