"""One YAML file is one complete run: the composition of the models that live beside their owners.

`load_config(path, overrides)` reads the file, applies `key.path=value` overrides (values are YAML) and checks
everything. Relative paths, wherever they are given, are relative to the working directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, get_origin

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from lancer.closed import Closed
from lancer.engines.http_engine import HttpConfig
from lancer.engines.replay import ReplayConfig
from lancer.engines.table import ROLES, EngineConfig, Role
from lancer.engines.tokenizers import has_tokenizer
from lancer.errors import InputError, UsageError, nearest
from lancer.evaluation.measures import parse_measures
from lancer.reranking.base import ByScorer
from lancer.reranking.table import RerankConfig
from lancer.stages.compress import CompressConfig
from lancer.stages.decompose import DecomposeConfig
from lancer.stages.estimate import EstimateConfig
from lancer.stages.judge import JudgeConfig
from lancer.stages.retrieve import RetrieveConfig
from lancer.stages.select import SelectConfig
from lancer.storage import StorageConfig

TAGS: Final = ("kind", "method")  # keys that tell the models of a union apart


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
    stall_s: float = Field(1800, gt=0)  # without any call or shard finished, once all engines have started
    startup_s: float = Field(6 * 3600, gt=0)  # of an engine: a place in the cluster, a download, a corpus to embed


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


def _listed(value: object) -> object:
    """One step of reranking as a list of one, none as an empty list."""
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


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
    rerank: Annotated[tuple[RerankConfig, ...], BeforeValidator(_listed)] = ()  # a step, or a funnel of several
    decompose: DecomposeConfig | None = None
    judge: JudgeConfig | None = None
    estimate: EstimateConfig | None = None
    select: SelectConfig | None = None  # null, like decompose and the matrix: the first stage, or reranking, alone
    compress: CompressConfig | None = None
    engines: dict[str, EngineConfig] = Field(default_factory=dict)
    storage: StorageConfig = StorageConfig()
    ray: RayConfig = RayConfig()
    limits: LimitsConfig = LimitsConfig()
    prices: dict[str, PriceConfig] = Field(default_factory=dict)  # by engine
    store: str | None = None  # where engines' answers are kept, for several runs to share; null = in `output`
    shard_queries: int = Field(4, ge=1)  # on average; a shard is what one worker call takes and one part holds

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        self._check_cascade()
        steps = {"decompose": self.decompose, "judge or estimate": self.judge or self.estimate, "select": self.select}
        missing = [name for name, step in steps.items() if step is None]
        if 0 < len(missing) < len(steps):
            given = ", ".join(name for name in steps if name not in missing)
            needed = " and ".join(missing)
            raise ValueError(f"{given} also needs {needed}; for the first stage or reranking alone leave all three out")
        if self.select is not None and len(set(self.select.selectors)) < len(self.select.selectors):
            raise ValueError(f"`select.selectors` names one twice: {', '.join(self.select.selectors)}")
        if self.compress is not None and self.compress.questions != "request" and self.decompose is None:
            raise ValueError(f"`compress.questions` {self.compress.questions!r} needs decompose; or use 'request'")
        self._check_orders()
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
            if role not in ROLES[self.engines[name].kind]:
                kinds = ", ".join(kind for kind, roles in ROLES.items() if role in roles)
                raise ValueError(
                    f"`{field}` names engine {name!r} of kind {self.engines[name].kind!r}; it needs {kinds}"
                )
        self._check_judge()
        self._check_recorded()
        dense = self.retrieve.dense
        if dense is not None and getattr(self.engines[dense], "embeddings", None) is None:
            raise ValueError(
                f"`retrieve` searches with engine {dense!r}, which keeps no `embeddings` of the corpus; "
                "`cache` keeps them in this machine's cache folder"
            )
        return self

    def _check_judge(self) -> None:
        """What the judge's engine must be able to do."""
        if self.judge is None:
            return
        name = self.judge.engine
        engine = self.engines[name]
        if self.judge.readout == "likelihood" and isinstance(engine, HttpConfig):
            raise ValueError(
                f"`judge.readout` 'likelihood' scores prompts, which engine {name!r} of kind 'http' cannot: chat "
                "completions have no log-probabilities of a prompt; use kind 'vllm'"
            )
        if self.judge.max_document_tokens is not None and not has_tokenizer(engine):
            raise ValueError(
                f"`judge.max_document_tokens` counts tokens, and engine {name!r} of kind {engine.kind!r} has no "
                "tokenizer here" + ("; set its `tokenizer`" if isinstance(engine, HttpConfig) else "")
            )

    def _check_recorded(self) -> None:
        """Only reranking says which of a query's calls one is; what has no such number would get another's answer."""
        for name, engine in self.engines.items():
            if isinstance(engine, ReplayConfig) and engine.order == "recorded":
                uses = [field for field, used, _ in self._uses() if used == name]
                if uses not in ([], ["rerank.engine"]):
                    raise ValueError(
                        f"engine {name!r} answers in recorded order, which is for one step of `rerank` alone, not for "
                        f"{' and '.join(f'`{field}`' for field in uses)}; order 'digest' is for all"
                    )

    def _check_orders(self) -> None:
        names = [step.order_name for step in self.rerank]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"`rerank` has two steps called {twice!r}; give one of them a `name`")
        if self.select is not None and (taken := set(names) & set(self.select.selectors)):
            raise ValueError(f"`rerank` has a step called {min(taken)!r}, as a selector is; give it another `name`")
        for step in self.rerank:
            engine = self.engines.get(step.engine)
            if engine is not None and step.kinds and engine.kind not in step.kinds:
                raise ValueError(
                    f"`rerank` method {step.method!r} names engine {step.engine!r} of kind {engine.kind!r}; "
                    f"it needs {' or '.join(step.kinds)}"
                )

    @property
    def order(self) -> str | None:
        """The name of the last order that reranking makes."""
        return self.rerank[-1].order_name if self.rerank else None

    def _check_cascade(self) -> None:
        only = self.judge.only if self.judge is not None else None
        if self.judge is not None and self.estimate is not None and only is None:
            raise ValueError(
                "`judge` and `estimate` both make the coverage matrix; set one to null, or say in `judge.only` which "
                "cells the judge is asked for after the estimator"
            )
        if only is None:
            return
        if self.estimate is None:
            raise ValueError("`judge.only` chooses cells by their estimates: it needs `estimate`")
        if only.calibration is not None and self.estimate.calibration is not None:
            raise ValueError(
                "`judge.only.calibration` maps the estimator's own probabilities: leave `estimate.calibration` out"
            )
        if only.until is not None and self.rerank:
            raise ValueError(
                "`judge.only.until` breaks ties in first-stage order, selection after `rerank` in the reranked one: "
                "the top could differ; leave one of them out"
            )
        selectors = self.select.selectors if self.select is not None else ()
        if only.until is not None and only.until.selector not in selectors:
            raise ValueError(
                f"`judge.only.until` decides the top of {only.until.selector!r}, which `select.selectors` lacks"
                + nearest(only.until.selector, selectors)
            )

    def _uses(self) -> list[tuple[str, str, Role]]:
        uses: list[tuple[str, str, Role]] = []
        if self.retrieve.source in ("bm25", "rrf"):
            uses.append(("retrieve.engine", self.retrieve.engine, "search"))
        for step in self.rerank:
            uses.append(("rerank.engine", step.engine, "scorer" if isinstance(step, ByScorer) else "text"))
        if self.retrieve.dense is not None:
            field = "retrieve.engine" if self.retrieve.source == "dense" else "retrieve.dense_engine"
            uses.append((field, self.retrieve.dense, "dense search"))
        if self.decompose is not None and self.decompose.source == "llm":
            uses.append(("decompose.engine", self.decompose.engine, "text"))
        if self.judge is not None:
            uses.append(("judge.engine", self.judge.engine, "text"))
        if self.estimate is not None:
            uses.append(("estimate.engine", self.estimate.engine, "scorer"))
        if self.compress is not None:
            role: Role = "text" if self.compress.method == "llm" else "scorer"
            uses.append(("compress.engine", self.compress.engine, role))
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
    tag_key, tags = "kind", list(ROLES)
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        if error["ctx"]["discriminator"].strip("'") == "method":
            tag_key, tags = "method", [str(m.model_fields["method"].default) for m in _models(RerankConfig)]
        steps = [*steps, tag_key]
    place = _place(steps, path, lines, overridden)
    if kind == "extra_forbidden":
        return f"{place}: unknown key {dotted!r}{nearest(steps[-1], _siblings(steps, tree))}"
    if kind == "missing":
        return f"{place}: key {dotted!r} is missing"
    if kind == "union_tag_not_found":
        return f"{place}: key '{dotted}.{tag_key}' is missing; allowed: {', '.join(tags)}"
    if kind == "union_tag_invalid":
        tag = str(error["ctx"]["tag"])
        return f"{place}: {dotted}.{tag_key}: found {tag!r}{nearest(tag, tags)}"
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
    """pydantic's location without what it puts in: the tags of unions, the place of an item given without its list."""
    steps: list[str] = []
    at = tree
    for i, step in enumerate(loc):
        if (isinstance(at, dict) and step in at) or (
            isinstance(at, list | tuple) and isinstance(step, int) and step < len(at)
        ):
            at = at[step]
        elif i < len(loc) - 1 or _is_put_in(step, at):
            continue
        steps.append(str(step))
    return steps


def _is_put_in(step: Any, at: Any) -> bool:
    return isinstance(at, dict) and (isinstance(step, int) or step in (at.get(key) for key in TAGS))


def _siblings(steps: list[str], tree: Any) -> list[str]:
    """The keys that are allowed where the unknown one stands."""
    annotation: Any = Config
    at: Any = tree
    for step in steps[:-1]:
        inside = isinstance(at, list) or get_origin(annotation) is dict  # its items have the annotation's models
        at = at[int(step)] if isinstance(at, list) else at[step]
        if not inside:
            model = _model(annotation, {})
            annotation = None if model is None else model.model_fields[step].annotation
    model = _model(annotation, at)
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model(annotation: Any, value: Any) -> type[Closed] | None:
    """The config model in an annotation; of several the one that the value's `kind` or `method` names."""
    models = _models(annotation)
    if len(models) < 2:
        return next(iter(models), None)
    named = {value[key] for key in TAGS if key in value} if isinstance(value, dict) else set()
    own = (m for m in models if any(m.model_fields[key].default in named for key in TAGS if key in m.model_fields))
    return next(own, None)


def _models(annotation: Any) -> list[type[Closed]]:
    """The config models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Closed):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models(part)]
