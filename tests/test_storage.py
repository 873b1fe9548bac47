"""Local files and S3 objects: whole or absent, found again, and errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import socket
import socketserver
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import InputError, OutputError, StorageError, UsageError
from lancer.storage import TEMPORARY_PREFIX, Entry, Storage, StorageConfig, is_remote, join, safe_name
from tests.s3_servers import S3Server


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def s3(s3_server: S3Server) -> Storage:
    return Storage(StorageConfig(endpoint_override=s3_server.endpoint))


@pytest.fixture
def base(s3_server: S3Server) -> str:
    return f"s3://{s3_server.create_bucket()}/runs/a"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def write_half(storage: Storage, uri: str, error: Exception) -> None:
    with storage.open_write(uri) as file:
        file.write(b"half")
        raise error


class CuttingProxy(socketserver.ThreadingTCPServer):
    """Forwards to `port` on loopback, and breaks off the first answer that is longer than `limit` bytes."""

    daemon_threads = True

    def __init__(self, port: int, limit: int) -> None:
        self.port, self.limit, self.cuts = port, limit, 0
        super().__init__(("127.0.0.1", 0), _Forward)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Forward(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy = cast(CuttingProxy, self.server)
        with socket.create_connection(("127.0.0.1", proxy.port)) as upstream:
            threading.Thread(target=self._requests, args=(upstream,), daemon=True).start()
            passed = 0
            while data := upstream.recv(65536):
                self.request.sendall(data)
                passed += len(data)
                if passed > proxy.limit and not proxy.cuts:
                    proxy.cuts += 1
                    return

    def _requests(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)


# Names


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("run",), "run"),
        (("run", "parts", "x.parquet"), "run/parts/x.parquet"),
        (("run/", "/parts/", "x"), "run/parts/x"),
        (("/", "x"), "/x"),
        (("", "x"), "x"),
        (("s3://bucket", "a", "b"), "s3://bucket/a/b"),
        (("s3://bucket/", "a"), "s3://bucket/a"),
        (("s3://bucket/k", ""), "s3://bucket/k"),
    ],
)
def test_join_puts_one_slash_between_parts(parts: tuple[str, ...], joined: str) -> None:
    assert join(*parts) == joined


def test_only_s3_uris_are_remote() -> None:
    assert is_remote("s3://bucket/key")
    assert not is_remote("runs/a:b")
    with pytest.raises(UsageError, match=r"scheme 'gs' is not supported; allowed: a local path, s3://"):
        is_remote("gs://bucket/key")


def test_safe_name_leaves_plain_ids_readable() -> None:
    assert safe_name("msmarco_v2.1_doc-7~a") == "msmarco_v2.1_doc-7~a"
    assert safe_name("a/b") == "a%2Fb"
    assert safe_name("..") == "%2E."


@given(st.text(), st.text())
def test_safe_names_are_path_components_and_differ_when_ids_do(one: str, other: str) -> None:
    name = safe_name(one)
    assert name
    assert "/" not in name
    assert name.isascii()
    assert not name.startswith(".")
    assert len(name) <= 150
    assert (name == safe_name(other)) == (one == other)


@pytest.mark.parametrize(("one", "other"), [("", "%"), (".", "%2E"), ("a b", "a%20b"), ("x" * 200, "x" * 201)])
def test_safe_names_of_look_alikes_differ(one: str, other: str) -> None:
    assert safe_name(one) != safe_name(other)


# Local files


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


def test_without_boto3_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from lancer.errors import SetupError\n"
        "from lancer.storage import Storage\n"
        "try: Storage().read('s3://bucket/key')\n"
        "except SetupError as error: sys.stdout.write(str(error))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lancer[s3]" in done.stdout


def test_importing_storage_does_not_import_boto3() -> None:
    code = "import sys, lancer.storage; sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# S3


@pytest.mark.s3
def test_s3_round_trip_list_and_delete(s3: Storage, base: str) -> None:
    uri = join(base, "parts", "q%2F1.parquet")
    assert not s3.exists(uri)
    s3.write(uri, b"one")
    s3.write(uri, b"two!")
    s3.write(join(base, "empty"), b"")
    s3.write(f"{base}2/other", b"")
    s3.write(join(base, f"{TEMPORARY_PREFIX}x"), b"")
    assert s3.exists(uri)
    assert s3.read(uri) == b"two!"
    assert s3.read(join(base, "empty")) == b""
    assert s3.list(base) == [Entry(join(base, "empty"), 0), Entry(uri, 4)]
    s3.delete(uri)
    s3.delete(uri)
    assert s3.list(join(base, "parts")) == []


@pytest.mark.s3
def test_s3_create_writes_once(s3: Storage, base: str) -> None:
    uri = join(base, "lock")
    assert s3.create(uri, b"first")
    assert not s3.create(uri, b"second")
    assert s3.read(uri) == b"first"


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)  # rclone ignores If-None-Match
def test_of_many_s3_creators_one_wins(s3: Storage, base: str) -> None:
    uri = join(base, "lock")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: s3.create(uri, b"%d" % i), range(16)))
    assert sum(won) == 1
    assert s3.read(uri) == b"%d" % won.index(True)


@pytest.mark.s3
def test_s3_open_write_commits_at_the_end_or_not_at_all(s3: Storage, base: str) -> None:
    with s3.open_write(join(base, "x")) as file:
        file.write(b"whole")
        assert not s3.exists(join(base, "x"))
    assert s3.read(join(base, "x")) == b"whole"
    with pytest.raises(RuntimeError, match="stop"):
        write_half(s3, join(base, "y"), RuntimeError("stop"))
    assert s3.list(base) == [Entry(join(base, "x"), 5)]


@pytest.mark.s3
def test_a_large_object_goes_in_parts_and_comes_back_whole(s3: Storage, base: str) -> None:
    data = b"0123456789abcde\n" * (101 * 65536)  # 106 MB: above the multipart limit
    s3.write(join(base, "large"), data)
    assert s3.read(join(base, "large")) == data


@pytest.mark.s3
def test_an_open_object_is_seekable(s3: Storage, base: str) -> None:
    table = pa.table({"query_id": [str(i) for i in range(100_000)], "n": range(100_000)})
    uri = join(base, "table.parquet")
    with s3.open_write(uri) as file:
        pq.write_table(table, file, row_group_size=10_000)
    with s3.open(uri) as file:
        assert pq.ParquetFile(file).read_row_group(3).column("n").to_pylist() == list(range(30_000, 40_000))
    with s3.open(uri) as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"PAR1"


@pytest.mark.s3
def test_a_read_goes_on_after_the_connection_breaks(s3: Storage, base: str, s3_server: S3Server) -> None:
    data = random.Random(0).randbytes(8_000_000)
    s3.write(join(base, "x"), data)
    with CuttingProxy(urlsplit(s3_server.endpoint).port or 0, limit=3_000_000) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        through_proxy = Storage(StorageConfig(endpoint_override=proxy.endpoint))
        assert through_proxy.read(join(base, "x")) == data
        assert proxy.cuts == 1
        proxy.shutdown()


@pytest.mark.s3
def test_an_object_replaced_while_it_is_read_is_an_error(s3: Storage, base: str) -> None:
    s3.write(join(base, "x"), b"a" * 4_000_000)
    with s3.open(join(base, "x")) as file:
        file.read(10)
        s3.write(join(base, "x"), b"b" * 4_000_000)
        file.seek(3_000_000)
        with pytest.raises(StorageError, match="another file took its place"):
            file.read()


@pytest.mark.s3
def test_storage_works_after_pickling(s3: Storage, base: str) -> None:
    s3.write(join(base, "x"), b"1")
    assert pickle.loads(pickle.dumps(s3)).read(join(base, "x")) == b"1"


@pytest.mark.s3
def test_missing_objects_and_buckets_are_input_errors(s3: Storage, base: str) -> None:
    with pytest.raises(InputError, match="no such object") as caught:
        s3.open(join(base, "missing"))
    assert caught.value.file == join(base, "missing")
    for failing in (s3.read, s3.list):
        with pytest.raises(InputError, match="no such bucket 'no-such-bucket'"):
            failing("s3://no-such-bucket/key")
    with pytest.raises(UsageError, match="s3://bucket/key"):
        s3.read("s3://bucket")


@pytest.mark.s3
def test_s3_check_writable(s3: Storage, base: str) -> None:
    s3.check_writable(base)
    assert s3.list(base) == []
    with pytest.raises(OutputError, match=r"cannot write to s3://no-such-bucket/run.*no such bucket"):
        s3.check_writable("s3://no-such-bucket/run")


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)  # moto checks no signature
def test_refused_credentials_say_what_to_check_and_nothing_secret(
    s3: Storage, base: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(StorageError, match="check the credentials") as caught:
        s3.read(join(base, "x"))
    message = str(caught.value)
    assert s3_server.endpoint in message
    assert "GetObject" in message
    assert base.split("/")[2] in message
    assert "wrong-secret" not in message
    assert "test-key-id" not in message


@pytest.mark.s3
def test_the_endpoint_may_come_from_the_environment(
    base: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    Storage().write(join(base, "x"), b"1")
    assert [entry.size for entry in Storage().list(base)] == [1]


def test_a_silent_endpoint_is_a_storage_error_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    storage = Storage(StorageConfig(endpoint_override="http://user:hidden@127.0.0.1:9"))
    with pytest.raises(StorageError, match=r"http://127.0.0.1:9, bucket 'b'.*storage.endpoint_override") as caught:
        storage.read("s3://b/k")
    assert "hidden" not in str(caught.value)


def test_a_malformed_endpoint_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        Storage(StorageConfig(endpoint_override="localhost")).read("s3://b/k")


@pytest.mark.s3
def test_the_time_of_a_store_is_that_of_its_files(s3: Storage, base: str, tmp_path: Path) -> None:
    for storage, folder in ((s3, base), (Storage(), str(tmp_path))):
        before = storage.now(folder)
        storage.write(join(folder, "x"), b"x")
        (entry,) = storage.list(folder)
        assert before - 2 <= entry.modified <= storage.now(folder) + 2
