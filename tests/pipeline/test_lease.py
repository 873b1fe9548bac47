"""One writer per run folder: who holds it, when it may be taken over, and that the former holder notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lancer.errors import LancerError, OutputError, StorageError
from lancer.pipeline import lease as module
from lancer.pipeline.lease import Lease, leased, read_session, session_uri, take, tokens
from lancer.storage import Storage, StorageConfig
from tests.s3_servers import S3Server

HOLDER = """
import sys, time
from lancer.pipeline import lease
from lancer.storage import Storage
lease.BEAT_S = 0.2
with lease.leased(Storage(), sys.argv[1], print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(module, "DEAD_S", 1.5)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def from_elsewhere(root: Path, token: int = 1) -> None:
    """The holder's record, as if it were on another machine."""
    file = Path(session_uri(str(root), token))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "another-host"}))


def test_sessions_follow_one_another(tmp_path: Path, said: list[str]) -> None:
    storage, root = Storage(), str(tmp_path)
    for token in (1, 2):
        with leased(storage, root, said.append) as lease:
            assert (lease.token, tokens(storage, root)[-1]) == (token, token)
            assert read_session(storage, root, token)["status"] == "running"
        assert read_session(storage, root, token)["status"] == "finished"
    assert not said


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_a_session_records_how_it_ended(
    tmp_path: Path, said: list[str], error: type[BaseException], status: str
) -> None:
    with pytest.raises(error), leased(Storage(), str(tmp_path), said.append):
        raise error
    assert read_session(Storage(), str(tmp_path), 1)["status"] == status
    assert take(Storage(), str(tmp_path), said.append).token == 2, "at once"


def test_the_heartbeat_carries_a_report(tmp_path: Path, said: list[str]) -> None:
    storage, root, done = Storage(), str(tmp_path), iter(range(1000))
    with leased(storage, root, said.append) as lease:
        first = read_session(storage, root, 1)["heartbeat"]
        lease.start(lambda: {"queries_done": next(done)})
        wait_until(lambda: read_session(storage, root, 1).get("queries_done", 0) > 1)
        record = read_session(storage, root, 1)
    assert record["heartbeat"] > first
    assert (record["pid"], record["token"]) == (os.getpid(), 1)


def test_two_processes_cannot_hold_one_folder(
    tmp_path: Path, said: list[str], other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEAD_S", 30.0)
    with pytest.raises(OutputError, match=rf"is being written by process {other.pid} on .*; end it first, or choose"):
        take(Storage(), str(tmp_path), said.append)
    assert tokens(Storage(), str(tmp_path)) == [1]


def test_a_dead_process_of_this_host_is_taken_over_from_at_once(
    tmp_path: Path, said: list[str], other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEAD_S", 30.0)
    other.kill()
    other.wait()
    start = time.monotonic()
    assert take(Storage(), str(tmp_path), said.append).token == 2
    assert time.monotonic() - start < 2
    assert said == [f"taking over from session 1, whose process {other.pid} is gone"]


def test_another_process_with_the_same_number_is_not_the_holder(tmp_path: Path, said: list[str]) -> None:
    take(Storage(), str(tmp_path), said.append)
    file = Path(session_uri(str(tmp_path), 1))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"born": "an earlier boot:1"}))
    assert take(Storage(), str(tmp_path), said.append).token == 2
    assert "is gone" in said[0]


def test_a_holder_in_another_container_or_machine_of_the_same_name_is_waited_for(
    tmp_path: Path, said: list[str]
) -> None:
    take(Storage(), str(tmp_path), said.append)
    file = Path(session_uri(str(tmp_path), 1))
    record = json.loads(file.read_text())
    boot, space = record["place"].split()
    gone = {"pid": 2**22 + 1}
    assert module.dead_here(record | gone)
    for elsewhere in (f"another-boot {space}", f"{boot} pid:[1]", None):
        assert not module.dead_here(record | gone | {"place": elsewhere})
    del record["place"]  # of another version
    assert not module.dead_here(record | gone)


def test_a_look_sees_at_once_who_has_taken_the_folder(tmp_path: Path, said: list[str]) -> None:
    storage, root = Storage(), str(tmp_path)
    lease = take(storage, root, said.append)
    lease.look()
    storage.create(session_uri(root, 2), b"{}")
    lease.check()
    with pytest.raises(OutputError, match=r"another session \(2\) has taken .* over; this one stops"):
        lease.look()
    with pytest.raises(OutputError, match="this one stops"):
        lease.check()


def test_a_silent_holder_elsewhere_is_waited_for(tmp_path: Path, said: list[str]) -> None:
    take(Storage(), str(tmp_path), said.append)
    from_elsewhere(tmp_path)
    start = time.monotonic()
    assert take(Storage(), str(tmp_path), said.append).token == 2
    assert time.monotonic() - start > 1.5
    assert "was last written by process" in said[0]
    assert "another-host; waiting up to 2 s for a sign of life" in said[0]
    assert said[1] == "taking over from session 1: no sign of life for 2 s"


def test_a_holder_elsewhere_that_gives_a_sign_of_life_keeps_the_folder(tmp_path: Path, said: list[str]) -> None:
    storage, root = Storage(), str(tmp_path)
    take(storage, root, said.append)
    from_elsewhere(tmp_path)
    file = Path(session_uri(root, 1))
    beat = threading.Timer(
        1.0,
        lambda: storage.write(str(file), json.dumps(json.loads(file.read_text()) | {"heartbeat": "later"}).encode()),
    )
    beat.start()
    with pytest.raises(OutputError, match=r"is being written by process .* on another-host, since"):
        take(storage, root, said.append)
    beat.join()
    assert tokens(storage, root) == [1]


def test_a_record_that_cannot_be_read_is_waited_for(tmp_path: Path, said: list[str]) -> None:
    Storage().write(session_uri(str(tmp_path), 1), b'{"token": 1, "ho')
    assert take(Storage(), str(tmp_path), said.append).token == 2
    assert "no sign of life" in said[-1]


def test_who_was_taken_over_from_notices_and_writes_nothing_more(tmp_path: Path, said: list[str]) -> None:
    storage, root = Storage(), str(tmp_path)
    with leased(storage, root, said.append) as lease:
        lease.check()
        storage.create(session_uri(root, 2), b"{}")
        wait_until(lambda: lease.lost)
        with pytest.raises(OutputError, match=r"another session \(2\) has taken .* over; this one stops"):
            lease.check()
        before = Path(session_uri(root, 1)).read_bytes()
    assert Path(session_uri(root, 1)).read_bytes() == before, "not even its last record"


class Flaky(Storage):
    """A store that is down for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

    def write(self, uri: str, data: bytes) -> None:
        if self.down:
            raise StorageError("object store http://127.0.0.1, bucket 'b', PutObject: refused with 503; try later")
        super().write(uri, data)


def test_lost_heartbeats_end_nothing_while_nobody_takes_over(tmp_path: Path, said: list[str]) -> None:
    storage, root = Flaky(), str(tmp_path)
    with leased(storage, root, said.append) as lease:
        storage.down = True
        silent = read_session(storage, root, 1)["heartbeat"]
        time.sleep(0.5)
        lease.check()
        assert read_session(storage, root, 1)["heartbeat"] == silent
        storage.down = False
        wait_until(lambda: read_session(storage, root, 1)["heartbeat"] > silent)
        lease.check()


def test_a_session_that_was_silent_too_long_has_lost_the_folder(tmp_path: Path, said: list[str]) -> None:
    storage, root = Flaky(), str(tmp_path)
    with leased(storage, root, said.append) as lease:
        storage.down = True
        time.sleep(0.3)
        from_elsewhere(tmp_path)
        assert take(Storage(), root, said.append).token == 2
        storage.down = False
        wait_until(lambda: lease.lost)


def test_an_interrupt_stays_an_interrupt_where_the_last_record_cannot_be_written(
    tmp_path: Path, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    storage = Flaky()

    def interrupted() -> None:
        with leased(storage, str(tmp_path), said.append):
            storage.down = True
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "the last record of session 1 could not be written" in caplog.text


def test_of_many_that_want_a_free_folder_one_gets_it(tmp_path: Path) -> None:
    storage, root = Storage(), str(tmp_path)
    got: list[Lease | None] = []
    start = threading.Barrier(8)

    def race() -> None:
        start.wait()
        got.append(module._create(storage, root, 1, lambda line: None))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len([lease for lease in got if lease is not None]) == 1


@pytest.mark.s3
def test_a_store_without_conditional_puts_is_warned_of(s3_server: S3Server, said: list[str]) -> None:
    root = f"s3://{s3_server.create_bucket()}/run"
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    with leased(storage, root, said.append) as lease:
        assert lease.token == 1
    warning = f"warning: {root} is on a store without conditional puts"
    assert [line.startswith(warning) for line in said] == [True] * (s3_server.name == "rclone")


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_of_many_that_want_a_free_folder_on_an_object_store_one_gets_it(s3_server: S3Server) -> None:
    root = f"s3://{s3_server.create_bucket()}/run"
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    got: list[Lease | None] = []

    def race() -> None:
        try:
            got.append(module._create(storage, root, 1, lambda line: None))
        except LancerError:
            got.append(None)

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in got if lease is not None]) == 1
