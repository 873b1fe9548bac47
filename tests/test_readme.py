"""What the README says is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from lancer import cli, errors
from lancer.config import Config
from lancer.engines.table import ROLES
from lancer.errors import LancerError
from lancer.schema import Scale
from lancer.selection import SELECTORS, CoverageMatrix, Selector, parse_selector
from tests.test_config import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return README.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def paths(text: str) -> list[str]:
    """Every path of the repository in backquotes, with {a,b} spelled out."""
    found = []
    for path in re.findall(r"`((?:lancer|tests|configs|cluster|jobs)/[\w./*{},]*)`", text):
        stem, brace, rest = path.partition("{")
        inside, _, tail = rest.partition("}")
        found.extend([stem + each + tail for each in inside.split(",")] if brace else [path])
    return found


def test_every_path_is_there() -> None:
    found = paths(README)
    assert len(found) > 50
    assert [path for path in found if not any(ROOT.glob(path.rstrip("/")))] == []


def test_names_in_the_file_map_are_in_their_files() -> None:
    named = re.findall(r"`([\w./]+\.py)` \(([^)]*)\)", section("File map"))
    assert len(named) >= 4
    for path, names in named:
        for name in re.findall(r"`(\w+)`", names):
            assert f"def {name}(" in (ROOT / path).read_text("utf-8"), f"{name} in {path}"


def test_exit_codes() -> None:
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LancerError))
    raised = {kind.exit_code for kind in kinds} | {0, cli.INTERRUPTED}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)} == raised


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.M)
    assert set(re.findall(r"`lancer (\w+)[ `]", section("Commands"))) == set(commands)


def test_config_keys_selectors_engines_and_configs() -> None:
    text = section("Config")
    keys = {
        re.split(r"[.<]", key)[0]
        for key in re.findall(r"`([\w.<>]+)`", "".join(re.findall(r"^\| (`[^|]*)\|", text, re.M)))
    }
    assert Config.model_fields.keys() <= keys
    assert all(re.search(rf"`{re.escape(name)}[(`]", text) for name in SELECTORS)
    assert all(f"`{kind}`" in text for kind in ROLES)
    assert all(f"`{path.stem}`" in text for path in CONFIGS)


def test_benchmarks() -> None:
    modules = (ROOT / "tests" / "benchmarks").glob("[a-z]*.py")
    files = {path.stem for path in modules if '__name__ == "__main__"' in path.read_text("utf-8")}
    table = "".join(re.findall(r"^\| (`[^|]*)\|", section("Tests, checks, benchmarks"), re.M))
    assert set(re.findall(r"`(\w+)`", table)) == files


def test_the_selector_to_add_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "readme_selector.py").write_text(re.findall(r"```python\n(.*?)```", section("Add a selector"), re.S)[0])
    monkeypatch.syspath_prepend(tmp_path)
    kind: type[Selector] = importlib.import_module("readme_selector").Count
    monkeypatch.setitem(SELECTORS, kind.name, kind)
    selector = parse_selector("count(tau=3)")
    assert repr(selector) == "count(tau=3)"
    matrix = CoverageMatrix(np.array([[5, 0], [3, 3], [0, 0]], dtype=np.float64), Scale.rating)
    assert selector.select(matrix).order == [1, 0, 2]
