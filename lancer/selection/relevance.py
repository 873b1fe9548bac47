"""How relevant the first stage finds a document, on 0 to 1, for the selectors that trade relevance for novelty."""

from __future__ import annotations

import numpy as np

from lancer.selection.matrix import CoverageMatrix, FloatArray


def relevance(matrix: CoverageMatrix) -> FloatArray:
    """First-stage scores between their minimum (0) and maximum (1), all 1 where they are equal.

    Without scores, the rank: 1 for the first of n candidates, then 1/n less for each next one.
    """
    scores, n = matrix.first_stage_scores, matrix.candidates
    if scores is None:
        return (n - np.arange(n, dtype=np.float64)) / max(n, 1)
    low, high = scores.min(initial=np.inf), scores.max(initial=-np.inf)
    return (scores - low) / (high - low) if high > low else np.ones(n)
