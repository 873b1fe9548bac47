"""One YAML file is one complete run: the composition of the models that live beside their owners.

`load_config(path, overrides)` reads the file, applies `key.path=value` overrides (values are YAML) and checks
everything. Relative paths, wherever they are given, are relative to the working directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from lancer.closed import Closed
from lancer.engines.table import ROLES, EngineConfig, Role
from lancer.errors import InputError, UsageError, nearest
from lancer.evaluation.measures import parse_measures
from lancer.schema import Scale
from lancer.stages.decompose import DecomposeConfig
from lancer.stages.estimate import EstimateConfig
from lancer.stages.judge import JudgeConfig
from lancer.stages.retrieve import RetrieveConfig
from lancer.stages.select import SelectConfig
from lancer.storage import StorageConfig


class RayConfig(Closed):
    """Where the run is carried out. `address` null = the cluster of RAY_ADDRESS, else a local Ray."""

    address: str | None = None
    num_cpus: int | None = Field(None, ge=1)  # of a local Ray; null = all cores
    workers: int = Field(2, ge=1)  # shards in flight
    worker_cpus: float = Field(0.25, gt=0)  # a worker mostly waits for engines


class LimitsConfig(Closed):
    """When a run ends before its end. Shares are of all queries, and of all cells judged or estimated so far.

    `usd` and `hours` are the budget of the run, over all its sessions.
    """

    usd: float | None = Field(None, gt=0)  # by `prices`
    hours: float | None = Field(None, gt=0)  # of the wall clock, while somebody carries it out

    failed_queries: float = Field(0.1, ge=0, le=1)
    failed_cells: float = Field(0.1, ge=0, le=1)
    engine_restarts: int = Field(10, ge=0)  # of each replica
    attempts: int = Field(2, ge=1)  # of a query alone in an engine that dies, before it is set aside
    stall_s: float = Field(1800, gt=0)  # without any call or shard finished


class PriceConfig(Closed):
    """What an engine costs: by the hour of a device (a GPU, or the process where it has none), or by tokens."""

    usd_per_device_hour: float = Field(0, ge=0)
    usd_per_million_prompt_tokens: float = Field(0, ge=0)  # not cached
    usd_per_million_cached_tokens: float = Field(0, ge=0)
    usd_per_million_output_tokens: float = Field(0, ge=0)

    @property
    def per_token(self) -> bool:
        """Whether any kind of token has a price."""
        tokens = (self.usd_per_million_prompt_tokens, self.usd_per_million_cached_tokens)
        return any((*tokens, self.usd_per_million_output_tokens))


def _measures(text: str) -> str:
    try:
        parse_measures(text)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return text


class Config(Closed):
    """A complete run."""

    output: str = Field(min_length=1)  # a folder, local or s3://
    requests: str
    corpus: str | None = None  # a file, a folder or a prefix
    qrels: str | None = None  # the closing summary evaluates against it
    measures: Annotated[str, AfterValidator(_measures)] = "alpha_nDCG@10 StRecall@10"
    retrieve: RetrieveConfig
    decompose: DecomposeConfig | None = None
    judge: JudgeConfig | None = None
    estimate: EstimateConfig | None = None
    select: SelectConfig | None = None  # null, like decompose and the matrix: the first stage alone
    engines: dict[str, EngineConfig] = Field(default_factory=dict)
    storage: StorageConfig = StorageConfig()
    ray: RayConfig = RayConfig()
    limits: LimitsConfig = LimitsConfig()
    prices: dict[str, PriceConfig] = Field(default_factory=dict)  # by engine
    store: str | None = None  # where engines' answers are kept, for several runs to share; null = in `output`
    shard_queries: int = Field(4, ge=1)  # on average; a shard is what one worker call takes and one part holds

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.judge is not None and self.estimate is not None:
            raise ValueError("`judge` and `estimate` both make the coverage matrix; set one to null")
        steps = {"decompose": self.decompose, "judge or estimate": self.judge or self.estimate, "select": self.select}
        missing = [name for name, step in steps.items() if step is None]
        if 0 < len(missing) < len(steps):
            given = ", ".join(name for name in steps if name not in missing)
            needed = " and ".join(missing)
            raise ValueError(f"{given} also needs {needed}; for the first stage alone leave all three out")
        if self.select is not None and len(set(self.select.selectors)) < len(self.select.selectors):
            raise ValueError(f"`select.selectors` names one twice: {', '.join(self.select.selectors)}")
        for name in self.prices:
            if name not in self.engines:
                raise ValueError(f"`prices` names engine {name!r}, which `engines` lacks" + nearest(name, self.engines))
        if self.limits.usd is not None and not self.prices:
            raise ValueError("`limits.usd` needs `prices`: without them nothing costs anything")
        for field, name, role in self._uses():
            if name not in self.engines:
                raise ValueError(
                    f"`{field}` names engine {name!r}, which `engines` lacks" + nearest(name, self.engines)
                )
            if ROLES[self.engines[name].kind] != role:
                kinds = ", ".join(kind for kind, r in ROLES.items() if r == role)
                raise ValueError(
                    f"`{field}` names engine {name!r} of kind {self.engines[name].kind!r}; it needs {kinds}"
                )
        return self

    @property
    def scale(self) -> Scale:
        """Of the coverage matrix."""
        return Scale.rating if self.judge is not None else Scale.probability

    def _uses(self) -> list[tuple[str, str, Role]]:
        uses: list[tuple[str, str, Role]] = []
        if self.retrieve.source == "bm25":
            uses.append(("retrieve.engine", self.retrieve.engine, "search"))
        if self.decompose is not None and self.decompose.source == "llm":
            uses.append(("decompose.engine", self.decompose.engine, "text"))
        if self.judge is not None:
            uses.append(("judge.engine", self.judge.engine, "text"))
        if self.estimate is not None:
            uses.append(("estimate.engine", self.estimate.engine, "scorer"))
        return uses


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Reads a YAML file with `key.path=value` overrides.

    InputError: the file is missing or no YAML mapping. UsageError: an unknown key, a bad value or override, each with
    its dotted key and, from the file, its line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None
    tree, lines = _read_yaml(text, path)
    overridden = set()
    for override in overrides:
        overridden.add(_apply(tree, override))
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UsageError("\n".join(_explain(e, tree, path, lines, overridden) for e in _roots(error))) from None


def _read_yaml(text: str, path: str | Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping, and the line of every dotted key."""
    lines: dict[str, int] = {}
    try:
        tree = yaml.safe_load(text)
        _note_lines(yaml.compose(text, Loader=yaml.SafeLoader), "", lines, path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"is not YAML: {reason}", file=path, line=mark.line + 1 if mark else None) from None
    if not isinstance(tree, dict):
        raise InputError("a config is a YAML mapping of keys to values", file=path)
    return tree, lines


def _note_lines(node: yaml.Node | None, prefix: str, lines: dict[str, int], path: str | Path) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            line = key.start_mark.line + 1
            if dotted in lines:
                raise InputError(f"given twice, first on line {lines[dotted]}", file=path, line=line, field=dotted)
            lines[dotted] = line
            _note_lines(value, f"{dotted}.", lines, path)


def _apply(tree: dict[str, Any], override: str) -> str:
    """Puts one override into the tree; returns its dotted key."""
    key, equals, text = override.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        raise UsageError(f"override {override!r} is not of the form key.path=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    at = tree
    for step in steps[:-1]:
        if at.get(step) is None:
            at[step] = {}
        at = at[step]
        if not isinstance(at, dict):
            raise UsageError(f"override {override!r}: {step!r} is a value, it holds no keys")
    at[steps[-1]] = value
    return ".".join(steps)


def _roots(error: ValidationError) -> list[Any]:
    """The errors without those of a list that only come from an error in one of its items."""
    errors = error.errors()
    inner = {e["loc"][:end] for e in errors for end in range(len(e["loc"]))}
    return [e for e in errors if e["loc"] not in inner]


def _explain(
    error: Mapping[str, Any], tree: dict[str, Any], path: str | Path, lines: dict[str, int], overridden: set[str]
) -> str:
    steps = _real_steps(error["loc"], tree)
    dotted, kind, found = ".".join(steps), error["type"], error.get("input")
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        steps = [*steps, "kind"]
    place = _place(steps, path, lines, overridden)
    if kind == "extra_forbidden":
        return f"{place}: unknown key {dotted!r}{nearest(steps[-1], _siblings(steps, tree))}"
    if kind == "missing":
        return f"{place}: key {dotted!r} is missing"
    if kind == "union_tag_not_found":
        return f"{place}: key '{dotted}.kind' is missing; allowed: {', '.join(ROLES)}"
    if kind == "union_tag_invalid":
        tag = str(error["ctx"]["tag"])
        return f"{place}: {dotted}.kind: found {tag!r}{nearest(tag, ROLES)}"
    shown = "null" if found is None else repr(found)
    shown = f"; found {shown}" if dotted and not isinstance(found, dict | list) else ""
    return f"{place}: {dotted + ': ' if dotted else ''}{_message(error)}{shown}"


def _message(error: Mapping[str, Any]) -> str:
    """pydantic's, without the words of Python."""
    kind: str = error["type"]
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return "must be a mapping of keys to values"
    if kind in ("tuple_type", "list_type"):
        return "must be a list, like [a, b]"
    if kind == "string_type":
        return "must be text, in quotes where YAML reads a number or a date"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def _place(steps: list[str], path: str | Path, lines: dict[str, int], overridden: set[str]) -> str:
    """Where the value was given, or what it is in: an override, or a line of the file."""
    keys = [".".join(steps[:end]) for end in range(len(steps), 0, -1)]
    beneath = sorted(o for o in overridden if keys and o.startswith(f"{keys[0]}."))
    override = next((key for key in keys if key in overridden), None)
    if override is None and beneath and keys[0] not in lines:
        override = beneath[0]
    if override is not None:
        return f"override {override}"
    return next((f"{path}:{lines[key]}" for key in keys if key in lines), str(path))


def _real_steps(loc: tuple[Any, ...], tree: Any) -> list[str]:
    """pydantic's location without the tags that it puts in for unions."""
    steps: list[str] = []
    at = tree
    for i, step in enumerate(loc):
        if (isinstance(at, dict) and step in at) or (
            isinstance(at, list | tuple) and isinstance(step, int) and step < len(at)
        ):
            at = at[step]
        elif i < len(loc) - 1:
            continue  # a union's tag
        steps.append(str(step))
    return steps


def _siblings(steps: list[str], tree: Any) -> list[str]:
    """The keys that are allowed where the unknown one stands."""
    fields = {name: field.annotation for name, field in Config.model_fields.items()}
    at: Any = tree
    for depth, step in enumerate(steps[:-1]):
        at = at[step]
        if steps[0] == "engines" and depth == 0:
            continue
        if steps[0] == "engines":
            kinds = {m.model_fields["kind"].default: m for m in _models(EngineConfig)}
            model = kinds.get(at.get("kind"))
        else:
            model = next(iter(_models(fields[step])), None)
        fields = {} if model is None else {name: field.annotation for name, field in model.model_fields.items()}
    return list(fields)


def _models(annotation: Any) -> list[type[Closed]]:
    """The config models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Closed):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models(part)]
