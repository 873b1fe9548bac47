"""The file that `lancer calibrate` writes and the stages judge and estimate read: a map of values, and what it was made
from and for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from lancer.closed import Closed
from lancer.errors import InputError
from lancer.evaluation.calibration import Floats, apply_knots
from lancer.schema import Scale
from lancer.storage import Storage

# Settings that change how often or how much is asked, not what a value means.
_FREE_SETTINGS: Final = frozenset({"calibration", "attempts", "seed", "only"})
_FREE_ENGINE: Final = frozenset({"max_model_len"})


class Threshold(Closed):
    """A tau in the calibrated scale, and what it was best at on the development queries."""

    tau: float
    selector: str | None = None  # with this tau; null = cells, whatever the selector
    measure: str
    value: float


class Provenance(Closed):
    """What a map was fitted on."""

    date: str
    versions: dict[str, str]
    matrix: str
    matrix_digest: str
    qrels: str
    qrels_digest: str
    queries: tuple[str, ...]
    cells: int
    positives: int


class Calibration(Closed):
    """`knots` map values of `from_scale` to `scale`, see `lancer.evaluation.calibration`.

    `made_for`: stage, settings and engines whose values these are, as in run.json; null = not known.
    """

    format: Literal["lancer calibration 1"] = "lancer calibration 1"
    target: str  # "grade >= 4", "grade"
    scale: Scale
    from_scale: Scale
    knots: tuple[tuple[float, float], ...] = Field(min_length=1)
    threshold: Threshold | None = None
    made_for: dict[str, Any] | None = None
    provenance: Provenance

    @model_validator(mode="after")
    def _monotone(self) -> Calibration:
        x, y = zip(*self.knots, strict=True)
        if any(b <= a for a, b in pairwise(x)) or any(b < a for a, b in pairwise(y)):
            raise ValueError("`knots` must be rising")
        if x[0] < 0 or x[-1] > self.from_scale.maximum or y[0] < 0 or y[-1] > self.scale.maximum:
            raise ValueError("`knots` leave their scales")
        return self

    @property
    def digest(self) -> str:
        """Of what changes results: the map and its scales."""
        text = json.dumps([self.scale, self.from_scale, self.knots])
        return hashlib.sha256(text.encode()).hexdigest()

    def apply(self, values: Floats) -> Floats:
        """Values of `from_scale` → values of `scale`, of the same shape; NaN stays NaN."""
        return apply_knots(self.knots, values)

    def check_scale(self, scale: Scale, path: str) -> None:
        """InputError when the map begins at values of another scale."""
        if scale is not self.from_scale:
            raise InputError(f"maps values of scale {self.from_scale.value}, here they are {scale.value}", file=path)

    def check_made_for(self, identity: Mapping[str, Any], path: str) -> None:
        """InputError when the map belongs to a stage with other settings or engines than `identity` has."""
        if self.made_for is None:
            raise InputError("does not say what it was made for: calibrate on a run folder", file=path)
        differences = _differences(self.made_for, made_for(identity))
        if differences:
            raise InputError(f"was made for other values: {'; '.join(differences)}", file=path)


def made_for(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What of a planned stage's identity decides what its values mean."""
    settings = {k: v for k, v in identity["settings"].items() if k not in _FREE_SETTINGS}
    engines = [{k: v for k, v in engine.items() if k not in _FREE_ENGINE} for engine in identity["engines"]]
    value: dict[str, Any] = json.loads(
        json.dumps({"stage": identity["stage"], "settings": settings, "engines": engines})
    )
    return value


def read_calibration(path: str, storage: Storage | None = None) -> Calibration:
    """InputError: the file is missing, or no calibration."""
    data = (storage or Storage()).read(path)
    try:
        return Calibration.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"is no calibration: {first['msg']}", file=path, field=where or None) from None


def write_calibration(calibration: Calibration, path: str, storage: Storage | None = None) -> None:
    """As JSON, in one step."""
    (storage or Storage()).write(path, (calibration.model_dump_json(indent=1) + "\n").encode())


def _differences(made: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(made, dict) and isinstance(now, dict):
        keys = sorted(made.keys() | now.keys())
        return [d for k in keys for d in _differences(made.get(k), now.get(k), f"{name}.{k}" if name else k)]
    if isinstance(made, list) and isinstance(now, list) and len(made) == len(now):
        return [d for i, (a, b) in enumerate(zip(made, now, strict=True)) for d in _differences(a, b, f"{name}[{i}]")]
    return [] if made == now else [f"{name} was {made!r}, here it is {now!r}"]
