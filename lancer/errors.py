"""Everything lancer raises on purpose, and the exit code of each.

LancerError                      1
├── UsageError                   2   command line, config key or value, selector spec, measure name
├── InputError                   3   a file that was given: missing, malformed, empty, inconsistent
├── PlanError                    4   the run cannot fit: hardware, columns, scales, budget
├── SetupError                   5   this machine lacks a package, Java, a model
├── EngineError                  6   Ray or an engine did not start, or cannot go on
│   ├── EngineDied               6   it died under some calls; it may be started again
│   ├── CallFailed               6   it failed at some calls; it goes on with others
│   └── EngineNotStarted         6   it was thought not to be needed
├── LimitError                   7   more failures than the config allows
│   └── BudgetError              7   the run has spent what it may
├── OutputError                  8   the output cannot be written, or holds another run
│   └── DamagedError             8   a file of the run is not what was written
└── StorageError                 9   the object store does not answer or refuses
(interrupted: 130)
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

_PACKAGE: Final = Path(__file__).parent


class LancerError(Exception):
    """Base of all; `str(error)` is a sentence for a person."""

    exit_code = 1


class UsageError(LancerError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class InputError(LancerError):
    """An input file is wrong; names file, line and field where they are known."""

    exit_code = 3

    def __init__(
        self, message: str, *, file: str | Path | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        self.message, self.file, self.line, self.field = message, file, line, field
        super().__init__(message, file, line, field)  # all of it, so that it survives pickling between processes

    def __str__(self) -> str:
        place = "" if self.file is None else str(self.file)
        if self.line is not None:
            place += f":{self.line}"
        parts = [place] if place else []
        if self.field is not None:
            parts.append(f"field {self.field!r}")
        return ": ".join([*parts, self.message])

    def __reduce__(self) -> tuple[object, ...]:
        return _input_error, (self.message, self.file, self.line, self.field)


def _input_error(message: str, file: str | Path | None, line: int | None, field: str | None) -> InputError:
    return InputError(message, file=file, line=line, field=field)


class PlanError(LancerError):
    """The run cannot fit: too little hardware, a missing column, a tau outside the scale, too small a budget."""

    exit_code = 4


class SetupError(LancerError):
    """This machine lacks something; the message says what to do."""

    exit_code = 5


class EngineError(LancerError):
    """An engine did not start, or died and could not be brought back.

    `answered`: what of a failed call of several prompts was answered nevertheless, by their places in it.
    """

    exit_code = 6

    def __init__(self, message: str, *, answered: Mapping[int, Any] | None = None) -> None:
        super().__init__(message)
        self.answered = dict(answered or {})


class EngineDied(EngineError):
    """An engine died under some calls, one of which may be the cause; a new one can be started."""


class CallFailed(EngineError):
    """An engine failed at some calls, one of which may be the cause; it goes on with others."""


class EngineNotStarted(EngineError):
    """A stage had to run again whose part seemed to be there, so its engine was not started."""


class LimitError(LancerError):
    """More queries or cells failed than the config's limits allow."""

    exit_code = 7


class BudgetError(LimitError):
    """The run has cost, or taken, as much as its config allows in all."""


class OutputError(LancerError):
    """The output cannot be written, or holds another run."""

    exit_code = 8


class DamagedError(OutputError):
    """A file of the run is not what was written; it is made again."""

    def __init__(self, uri: str, reason: str) -> None:
        self.uri, self.reason = uri, reason
        super().__init__(uri, reason)

    def __str__(self) -> str:
        return f"{self.uri} is damaged: {self.reason}"


class StorageError(LancerError):
    """The object store does not answer, or refuses."""

    exit_code = 9


def unforeseen(error: BaseException) -> str:
    """What nobody foresaw, and where: the last place in our own code, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    where = ""
    if frames:
        last = own[-1] if own else frames[-1]
        file = Path(last.filename).relative_to(_PACKAGE.parent) if own else last.filename
        where = f" ({file}:{last.lineno}, in {last.name})"
    return f"{type(error).__name__}: {error}{where}"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A suffix for messages: `; did you mean 'x'?`, or the allowed names when nothing is close."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(names)}"
