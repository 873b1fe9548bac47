"""The greedy selectors in plain Python, by their definitions: what the fast ones must equal, and are timed against."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def _pick(remaining: list[int], gains: Sequence[float], own: Sequence[float]) -> tuple[float, int]:
    """The highest gain; of equals the higher own utility, then the earlier candidate."""
    gain, _, minus = max((g, own[d], -d) for d, g in zip(remaining, gains, strict=True))
    return gain, -minus


def _finish(chosen: list[int], remaining: list[int], own: Sequence[float]) -> list[int]:
    return chosen + sorted(remaining, key=lambda d: -own[d])


def greedy_sum(rows: Rows, tau: float) -> list[int]:
    """Best rating per sub-question, summed; stops when nothing gains."""
    kept = [[r if r >= tau else 0.0 for r in row] for row in rows]
    own = [_sum(row) for row in kept]
    best = [0.0] * (len(rows[0]) if rows else 0)
    chosen: list[int] = []
    remaining = list(range(len(rows)))
    while remaining:
        gains = [_sum([r - b if r > b else 0.0 for r, b in zip(kept[d], best, strict=True)]) for d in remaining]
        gain, pick = _pick(remaining, gains, own)
        if gain <= 0:
            break
        best = [max(r, b) for r, b in zip(kept[pick], best, strict=True)]
        chosen.append(pick)
        remaining.remove(pick)
    return _finish(chosen, remaining, own)


def greedy_coverage(rows: Rows, tau: float) -> list[int]:
    """Number of sub-questions with a rating of at least tau; stops when nothing gains."""
    answers = [{j for j, r in enumerate(row) if r >= tau} for row in rows]
    own = [float(len(a)) for a in answers]
    covered: set[int] = set()
    chosen: list[int] = []
    remaining = list(range(len(rows)))
    while remaining:
        gains = [len(answers[d] - covered) for d in remaining]
        gain, pick = _pick(remaining, gains, own)
        if gain <= 0:
            break
        covered |= answers[pick]
        chosen.append(pick)
        remaining.remove(pick)
    return _finish(chosen, remaining, own)


def greedy_alpha(rows: Rows, tau: float, alpha: float) -> list[int]:
    """Each further document that answers a sub-question is worth (1 - alpha) times the one before."""
    answers = [[j for j, r in enumerate(row) if r >= tau] for row in rows]
    own = [float(len(a)) for a in answers]
    weight = [1.0] * (len(rows[0]) if rows else 0)
    chosen: list[int] = []
    remaining = list(range(len(rows)))
    while remaining:
        gains = [_sum([weight[j] for j in answers[d]]) for d in remaining]
        gain, pick = _pick(remaining, gains, own)
        if gain <= 0:
            break
        for j in answers[pick]:
            weight[j] *= 1.0 - alpha
        chosen.append(pick)
        remaining.remove(pick)
    return _finish(chosen, remaining, own)


def greedy_expected(rows: Rows) -> list[int]:
    """Expected number of answered sub-questions, 1 - prod(1 - p) each."""
    own = [_sum(row) for row in rows]
    open_ = [1.0] * (len(rows[0]) if rows else 0)
    chosen: list[int] = []
    remaining = list(range(len(rows)))
    while remaining:
        gains = [_sum([p * o for p, o in zip(rows[d], open_, strict=True)]) for d in remaining]
        gain, pick = _pick(remaining, gains, own)
        if gain <= 0:
            break
        open_ = [o * (1.0 - p) for p, o in zip(rows[pick], open_, strict=True)]
        chosen.append(pick)
        remaining.remove(pick)
    return _finish(chosen, remaining, own)


def _sum(numbers: Sequence[float]) -> float:
    """From the first to the last; `sum` compensates rounding from Python 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total
