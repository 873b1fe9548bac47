"""Imports go one way, as the README says: a module knows those of its own layer and of the layers before it."""

from __future__ import annotations

import ast
from pathlib import Path

import lancer

PACKAGE = Path(lancer.__file__).parent
LAYERS = (
    ("schema", "errors", "storage", "closed", "digests"),
    ("formats", "text", "prompts", "selection", "evaluation"),
    ("engines",),
    ("reranking",),
    ("stages",),
    ("config", "pipeline"),
    ("__init__", "cli", "doctor"),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def imported(file: Path) -> set[str]:
    """Modules of the package, also those that a function imports when it runs."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith("lancer.")}


def test_every_module_has_a_layer() -> None:
    assert {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} == set(
        LAYER
    )


def test_imports_go_one_way() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for name in sorted(imported(file))
        if LAYER[name.split(".")[1]] > LAYER[file.relative_to(PACKAGE).parts[0].removesuffix(".py")]
    ]
    assert wrong == []
