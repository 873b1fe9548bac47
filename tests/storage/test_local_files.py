"""Local files: whole or absent, found again, and errors that say what to do."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lancer.errors import InputError, OutputError
from lancer.storage import TEMPORARY_PREFIX, Entry, Storage, join


@pytest.fixture
def storage() -> Storage:
    return Storage()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def write_half(storage: Storage, uri: str, error: Exception) -> None:
    with storage.open_write(uri) as file:
        file.write(b"half")
        raise error


def test_write_makes_folders_replaces_and_leaves_no_temporary(storage: Storage, tmp_path: Path) -> None:
    uri = join(str(tmp_path), "a", "b", "x.bin")
    storage.write(uri, b"one")
    storage.write(uri, b"two")
    assert storage.read(uri) == b"two"
    assert names(tmp_path / "a" / "b") == ["x.bin"]


def test_new_files_have_the_usual_permissions(storage: Storage, tmp_path: Path) -> None:
    storage.write(f"{tmp_path}/x", b"")
    (tmp_path / "y").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_an_error_while_writing_keeps_the_old_file_and_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    uri = f"{tmp_path}/x"
    storage.write(uri, b"old")
    with pytest.raises(RuntimeError, match="stop"):
        write_half(storage, uri, RuntimeError("stop"))
    assert storage.read(uri) == b"old"
    assert names(tmp_path) == ["x"]


def test_nothing_is_visible_before_the_block_ends(storage: Storage, tmp_path: Path) -> None:
    uri = f"{tmp_path}/x"
    with storage.open_write(uri) as file:
        file.write(b"whole")
        file.flush()
        assert not storage.exists(uri)
        assert storage.list(str(tmp_path)) == []
    assert storage.read(uri) == b"whole"


def test_a_callers_own_file_error_inside_the_block_is_not_disguised(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_half(storage, f"{tmp_path}/x", FileNotFoundError(errno.ENOENT, "an input"))
    assert names(tmp_path) == []


def test_a_full_disk_is_an_output_error(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No space left on device"):
        write_half(storage, f"{tmp_path}/x", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert names(tmp_path) == []


def test_create_writes_once(storage: Storage, tmp_path: Path) -> None:
    uri = f"{tmp_path}/lock"
    assert storage.create(uri, b"first")
    assert not storage.create(uri, b"second")
    assert storage.read(uri) == b"first"
    assert names(tmp_path) == ["lock"]


def test_of_many_creators_one_wins(storage: Storage, tmp_path: Path) -> None:
    uri = f"{tmp_path}/lock"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: storage.create(uri, b"%d" % i), range(32)))
    assert sum(won) == 1
    assert storage.read(uri) == b"%d" % won.index(True)


def test_list_is_recursive_sorted_and_skips_temporaries(storage: Storage, tmp_path: Path) -> None:
    base = str(tmp_path / "run")
    for name, size in (("b/2", 2), ("a", 1), ("b/1", 0)):
        storage.write(join(base, name), b"x" * size)
    storage.write(f"{tmp_path}/run2/other", b"")
    (tmp_path / "run" / f"{TEMPORARY_PREFIX}left-by-a-kill").touch()
    expected = [Entry(f"{base}/a", 1), Entry(f"{base}/b/1", 0), Entry(f"{base}/b/2", 2)]
    assert storage.list(base) == expected
    assert storage.list(base + "/") == expected
    assert storage.list(f"{tmp_path}/none") == []
    assert storage.list(base, "b/") == expected[1:]
    assert storage.list(base, "b/2") == expected[2:]


def test_delete_is_repeatable(storage: Storage, tmp_path: Path) -> None:
    uri = f"{tmp_path}/x"
    storage.write(uri, b"")
    storage.delete(uri)
    storage.delete(uri)
    assert not storage.exists(uri)


def test_a_folder_is_not_a_file(storage: Storage, tmp_path: Path) -> None:
    assert not storage.exists(str(tmp_path))
    with pytest.raises(InputError, match="Is a directory"):
        storage.read(str(tmp_path))


def test_a_missing_file_is_named(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file") as caught:
        storage.open(f"{tmp_path}/missing.jsonl")
    assert caught.value.file == f"{tmp_path}/missing.jsonl"


def test_check_writable_says_why_not_and_leaves_no_trace(storage: Storage, tmp_path: Path) -> None:
    storage.check_writable(f"{tmp_path}/new/run")
    assert names(tmp_path) == []
    (tmp_path / "file").touch()
    for uri in (f"{tmp_path}/file", f"{tmp_path}/file/run"):
        with pytest.raises(OutputError, match="Not a directory"):
            storage.check_writable(uri)
        with pytest.raises(OutputError):
            storage.write(join(uri, "x"), b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_check_writable_sees_permissions(storage: Storage, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        storage.check_writable(f"{tmp_path}/run")
