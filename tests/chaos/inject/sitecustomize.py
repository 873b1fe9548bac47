"""In every Python process of a job under chaos: this folder is on its PYTHONPATH, so Python imports this file first.

In the folder that CHAOS names, `armed.json` {"what": part of a URI, "when": "before" or "after"} asks for a death: the
first process that commits such a file kills itself, when the bytes are written but not yet visible, or just visible but
not yet known to anybody. `hit-<pid>` says who it was. `calls-<pid>` gets one line per prompt that an engine was asked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["CHAOS"])


def die_at(when: str, uri: str) -> None:
    """Ends this process where it is asked to."""
    armed = FOLDER / "armed.json"
    try:
        order = json.loads(armed.read_text())
        if order["when"] != when or order["what"] not in uri:
            return
        armed.rename(FOLDER / f"hit-{os.getpid()}")  # only one process succeeds
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def patch_local_files(module: ModuleType) -> None:
    """Commits to disk are renames and links of temporary files."""

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def committing(source: Any, target: Any, **options: Any) -> Any:
            ours = module.TEMPORARY_PREFIX in os.fspath(source)
            if ours:
                die_at("before", os.fspath(target))
            result = function(source, target, **options)
            if ours:
                die_at("after", os.fspath(target))
            return result

        return committing

    os.replace, os.link = around(os.replace), around(os.link)


def patch_s3(module: ModuleType) -> None:
    """Commits to S3 are puts."""
    new_client = getattr(module, "new_client")  # noqa: B009 - the module is not typed here

    def client(config: Any) -> Any:
        made = new_client(config)
        put = made.put_object

        def put_object(**options: Any) -> Any:
            die_at("before", options["Key"])
            result = put(**options)
            die_at("after", options["Key"])
            return result

        made.put_object = put_object
        return made

    setattr(module, "new_client", client)  # noqa: B010


def patch_engine(module: ModuleType) -> None:
    """Prompts are noted before they are answered."""
    from lancer.engines.replay import request_digest

    engine = next(getattr(module, name) for name in ("SyntheticEngine", "ReplayEngine") if hasattr(module, name))
    generate = engine.generate

    def noting(self: Any, prompts: Any, sampling: Any, *, priority: int = 0) -> Any:
        with (FOLDER / f"calls-{os.getpid()}").open("a") as file:
            file.writelines(f"{request_digest(prompt, sampling)}\n" for prompt in prompts)
        return generate(self, prompts, sampling, priority=priority)

    engine.generate = noting


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "lancer.storage.local_files": patch_local_files,
    "lancer.storage.s3_connection": patch_s3,
    "lancer.engines.synthetic": patch_engine,
    "lancer.engines.replay": patch_engine,
}


class Finder:
    """Finds these modules as Python does, and patches them once they are loaded."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        patch = PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder)
