"""What may happen to a file, and which ones."""

from __future__ import annotations

import shutil
from pathlib import Path


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def exchange(file: Path) -> None:
    """Puts another shard's part in its place."""
    other = next(f for f in sorted(file.parent.iterdir()) if f != file)
    file.write_bytes(other.read_bytes())


def foreign(file: Path) -> None:
    """Puts another shard's part in its place, under a name that fits its bytes."""
    other = next(f for f in sorted(file.parent.iterdir()) if f != file)
    file.unlink()
    name, _, _ = file.name.rpartition("-")
    shutil.copy(other, file.with_name(f"{name}-{other.name.rpartition('-')[2]}"))


def parts(folder: Path, stage: str) -> list[Path]:
    return sorted(p for p in (folder / "run" / "parts").rglob("*.parquet") if p.parent.name.startswith(stage))
