"""S3 objects: whole or absent, found again, and errors that say what to do."""

from __future__ import annotations

import contextlib
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

from lancer.errors import InputError, OutputError, StorageError, UsageError
from lancer.storage import TEMPORARY_PREFIX, Entry, Storage, StorageConfig, join
from tests.s3_servers import S3Server


@pytest.fixture
def s3(s3_server: S3Server) -> Storage:
    return Storage(StorageConfig(endpoint_override=s3_server.endpoint))


@pytest.fixture
def base(s3_server: S3Server) -> str:
    return f"s3://{s3_server.create_bucket()}/runs/a"


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
    with pytest.raises(UsageError, match=r"^s3://: not an object-store URI"):
        s3.check_writable("s3://")
    with pytest.raises(StorageError, match=r"cannot write to s3://b/run: .*127.0.0.1:9, .*check that the endpoint"):
        Storage(StorageConfig(endpoint_override="http://127.0.0.1:9")).check_writable("s3://b/run")


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
