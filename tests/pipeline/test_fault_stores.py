"""A full disk and object stores that fail, on a real Ray: survived, or a message and a run that can go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from lancer.errors import OutputError, StorageError
from lancer.pipeline import lease
from lancer.pipeline.distributed.runner import run
from lancer.storage import Storage, StorageConfig
from tests.pipeline.judged import again, judged_config, run_bytes
from tests.s3_servers import S3Server

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_run_with_a_message_and_it_goes_on_when_there_is_room(
    small_disk: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DEAD_S", 1.0)  # this process, which could not say that it ended, is still alive
    config = again(small_disk, undisturbed)
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - 60_000))
    with pytest.raises(OutputError, match=r"cannot write to .*: No space left on device"):
        run(config)
    filler.unlink()
    run(config)
    assert run_bytes(small_disk / "run") == run_bytes(undisturbed / "run")


HANG_UP: Final = 0
FORGET: Final = 1


class FaultyStore(BaseHTTPRequestHandler):
    """Passes requests on to an S3 server, but for those that `fault` answers with a status, hangs up on or forgets."""

    protocol_version = "HTTP/1.1"
    upstream: str
    fault: Callable[[str, int], int | None]
    counted: Counter[str]

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.counted["requests"] += 1
        status = type(self).fault(self.command, self.counted["requests"])
        if status is not None:
            self.counted[str(status)] += 1
            self._fail(status)
            return
        import http.client

        connection = http.client.HTTPConnection(self.upstream.removeprefix("http://"), timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    def _fail(self, status: int) -> None:
        if status in (HANG_UP, FORGET):
            time.sleep(1.0 if status == FORGET else 0.0)
            self.close_connection = True
            return
        code = {500: "InternalError", 503: "SlowDown"}[status]
        content = b"" if self.command == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def faulty(server: S3Server, fault: Callable[[str, int], int | None]) -> Iterator[tuple[str, Counter[str]]]:
    """(endpoint, counts) of a proxy before an S3 server; `fault(method, number)` gives a status or None."""
    counted: Counter[str] = Counter()
    handler = type(
        "Handler",
        (FaultyStore,),
        {"upstream": server.endpoint, "fault": staticmethod(fault), "counted": counted},
    )

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that has hung up

    with Listener(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}", counted
        listener.shutdown()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_fails_now_and_then_is_survived(
    s3_server: S3Server, undisturbed: Path, tmp_path: Path
) -> None:
    def fault(method: str, number: int) -> int | None:
        return {5: 500, 10: 503, 15: HANG_UP}.get(number % 20)

    bucket = s3_server.create_bucket()
    with faulty(s3_server, fault) as (endpoint, counted):
        output = [f"output=s3://{bucket}/run", f"storage.endpoint_override={endpoint}"]
        run(judged_config(undisturbed, *output))
        assert min(counted[status] for status in ("500", "503", str(HANG_UP))) >= 3
    names = ["run.trec", "first_stage.trec"]
    client = s3_server.client()
    for name in names:
        content = client.get_object(Bucket=bucket, Key=f"run/{name}")["Body"].read()
        assert content == (undisturbed / "run" / name).read_bytes()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_is_gone_ends_the_run_resumably(
    s3_server: S3Server, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DEAD_S", 1.0)  # this process, which could not say that it ended, is still alive
    down = threading.Event()

    def fault(method: str, number: int) -> int | None:
        if method == "PUT" and number > 25:
            down.set()
        return 503 if down.is_set() else None

    bucket = s3_server.create_bucket()
    with faulty(s3_server, fault) as (endpoint, _):
        output = f"output=s3://{bucket}/run"
        with pytest.raises(StorageError, match=f"object store {endpoint}, bucket '{bucket}', .*refused with"):
            run(judged_config(undisturbed, output, f"storage.endpoint_override={endpoint}"))
        assert down.is_set()
    endpoint = s3_server.endpoint
    run(judged_config(undisturbed, output, f"storage.endpoint_override={endpoint}"))
    content = s3_server.client().get_object(Bucket=bucket, Key="run/run.trec")["Body"].read()
    assert content == (undisturbed / "run" / "run.trec").read_bytes()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_does_not_answer_in_time_is_asked_again(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancer.storage.s3_connection._ANSWER_S", 0.3)
    uri = f"s3://{s3_server.create_bucket()}/x"
    with faulty(s3_server, lambda method, number: FORGET if number == 1 else None) as (endpoint, counted):
        storage = Storage(StorageConfig(endpoint_override=endpoint))
        storage.write(uri, b"content")
        assert storage.read(uri) == b"content"
        assert counted[str(FORGET)] == 1
    with faulty(s3_server, lambda method, number: FORGET) as (endpoint, counted):
        with pytest.raises(StorageError, match="PutObject: ReadTimeoutError; check that the endpoint"):
            Storage(StorageConfig(endpoint_override=endpoint)).write(uri, b"other")
        assert counted[str(FORGET)] == 4, "four attempts, no more"
    assert Storage(StorageConfig(endpoint_override=s3_server.endpoint)).read(uri) == b"content"
