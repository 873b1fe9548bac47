"""Measure names, as people write them, to measures that can be computed here: the first step of an evaluation.

The syntax is ir_measures': `name`, `name@cutoff`, `name(parameter=value,...)@cutoff`. Words need no quotation marks:
`Cov(of=all)@10`. trec_eval's own names (`ndcg_cut_10`) are answered with the name to use.

Of ir_measures' evaluators these are used: pytrec_eval, pyndeval, compat, judged, msmarco. Its gdeval (ERR, nDCG with
exp-log2) is a perl script that takes no query id that is not a number and no grade above 4; cwl_eval and ranx are not
installed; Accuracy has no value where no relevant document is retrieved.
"""

from __future__ import annotations

import math
import re
from typing import Final

import ir_measures
from ir_measures import Measure

from lancer.errors import UsageError, nearest
from lancer.evaluation.coverage import Cov
from lancer.schema import RATING_SCALE

DIVERSITY: Final = frozenset(measure.NAME for measure in ir_measures.pyndeval.SUPPORTED_MEASURES)
OWN_ABOVE_NDEVAL: Final = frozenset({"alpha_nDCG", "StRecall"})
NDEVAL_DEPTH: Final = 20
EXAMPLE: Final = "alpha_nDCG@10 StRecall@10 nDCG@10 Judged@10"
EVALUATORS: Final = ir_measures.providers.FallbackProvider(
    [ir_measures.pytrec_eval, ir_measures.compat, ir_measures.pyndeval, ir_measures.judged, ir_measures.msmarco]
)

_REGISTRY: Final[dict[str, Measure]] = ir_measures.measures.registry
_NAMES: Final = {Cov.NAME, *(m.NAME for provider in EVALUATORS.providers for m in provider.SUPPORTED_MEASURES)}
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "cutoff": (1, math.inf),
    "rel": (1, math.inf),
    "alpha": (0, 1),
    "beta": (0, math.inf),
    "recall": (0, 1),
    "tau": RATING_SCALE,
}
_WORD: Final = re.compile(r"(?:[^\s,({]|\([^)]*\)?|\{[^}]*\}?)+")
_BARE: Final = re.compile(r"(?<==)\s*(?!True\b|False\b)([A-Za-z][\w-]*)(?=\s*[,)])")


def parse_measures(text: str) -> list[Measure]:
    """The measures in `text`, separated by blanks or commas, each once.

    UsageError: no measure; a name, parameter, value or cutoff that does not exist; one that no evaluator computes.
    """
    words = _WORD.findall(text)
    if not words:
        raise UsageError(f"no measure is named; for example: {EXAMPLE}")
    return list({str(measure): measure for measure in map(_parse, words)}.values())


def cutoff_of(measure: Measure) -> int | None:
    """The measure's cutoff; None when it looks at the whole ranking."""
    cutoff: int | None = measure.params.get("cutoff")
    return cutoff


def _parse(word: str) -> Measure:
    name = re.split(r"[(@]", word, maxsplit=1)[0]
    if name not in _REGISTRY:
        raise UsageError(f"measure {word!r} does not exist{_suggestion(word, name)}")
    try:
        measure = ir_measures.parse_measure(_BARE.sub(r"'\1'", word))
    except (ValueError, TypeError):
        raise UsageError(f"measure {word!r} cannot be read; written like {EXAMPLE} P(rel=2)@10") from None
    for parameter, value in measure.params.items():
        _check_parameter(measure, parameter, value, word)
    required = [name for name, info in measure.SUPPORTED_PARAMS.items() if info.required and name not in measure.params]
    if measure.NAME in DIVERSITY and "cutoff" in measure.SUPPORTED_PARAMS and "cutoff" not in measure.params:
        required = ["cutoff"]
    if required:
        form = f"{measure.NAME}@10" if measure.AT_PARAM in required else f"{measure.NAME}({required[0]}=...)"
        raise UsageError(f"measure {word!r} needs {' and '.join(required)}, for example {form}")
    if measure.NAME != Cov.NAME and not EVALUATORS.supports(measure):
        raise UsageError(f"measure {word!r}: no evaluator here computes it with these parameters")
    if measure.NAME in DIVERSITY - OWN_ABOVE_NDEVAL and (cutoff_of(measure) or 0) > NDEVAL_DEPTH:
        own = " and ".join(sorted(OWN_ABOVE_NDEVAL))
        raise UsageError(f"measure {word!r}: the cutoff is at most {NDEVAL_DEPTH}; only {own} go deeper")
    return measure


def _check_parameter(measure: Measure, parameter: str, value: object, word: str) -> None:
    info = measure.SUPPORTED_PARAMS.get(parameter)
    if info is None:
        what = "takes no cutoff" if parameter == "cutoff" else f"has no parameter {parameter!r}"
        raise UsageError(f"measure {word!r}: {measure.NAME} {what}{nearest(parameter, measure.SUPPORTED_PARAMS)}")
    if not info.validate(value) or (isinstance(value, bool) and info.dtype is not bool):
        choices = info.choices if isinstance(info.choices, list) else ()
        kinds = info.dtype if isinstance(info.dtype, tuple) else (info.dtype,)
        allowed = ", ".join(map(repr, choices)) or " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"measure {word!r}: {parameter} is {value!r}; allowed: {allowed}")
    low, high = _LIMITS.get(parameter, (-math.inf, math.inf))
    if isinstance(value, int | float) and not low <= value <= high:
        allowed = f"at least {low}" if high == math.inf else f"{low} to {high}"
        raise UsageError(f"measure {word!r}: {parameter} is {value}; allowed: {allowed}")


def _suggestion(word: str, name: str) -> str:
    def plain(text: str) -> str:
        return text.lower().replace("_", "").replace("-", "")

    same = {plain(known): str(measure) for known, measure in _REGISTRY.items() if measure.NAME in _NAMES}
    if plain(name) in same:
        return f"; did you mean {same[plain(name)] + word[len(name) :]!r}?"
    try:
        return f"; did you mean {str(ir_measures.parse_trec_measure(word)[0])!r}?"
    except (ValueError, NameError, IndexError):
        return nearest(name, _NAMES)
