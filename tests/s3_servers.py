"""Real S3 servers on loopback, as a session fixture: moto and rclone, one after the other.

They differ where it matters: moto enforces If-None-Match, rclone ignores it and stores files in a folder.
A test that needs only one of them says `@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

_START_SECONDS = 60.0


@dataclass(frozen=True)
class S3Server:
    """A running server; its credentials are in the environment, where boto3 finds them."""

    name: str
    endpoint: str
    environment: dict[str, str] = field(repr=False)  # for processes that do not inherit this one's, e.g. Ray's

    def create_bucket(self) -> str:
        """A new, empty bucket; returns its name."""
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def client(self) -> Any:
        """A plain boto3 client, to look at a bucket without the code under test."""
        settings = Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"})
        return boto3.session.Session().client("s3", endpoint_url=self.endpoint, config=settings)


@pytest.fixture(scope="session")
def s3_credentials() -> Iterator[dict[str, str]]:
    """The credentials of the test servers, in the environment of this process and of those it starts."""
    environment = {
        "AWS_ACCESS_KEY_ID": "test-key-id",
        "AWS_SECRET_ACCESS_KEY": f"test-{uuid.uuid4().hex}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(variable, raising=False)
        for variable, value in environment.items():
            patch.setenv(variable, value)
        yield environment


@pytest.fixture(scope="session", params=["moto", "rclone"])
def s3_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, s3_credentials: dict[str, str]
) -> Iterator[S3Server]:
    """An S3 server on a free port of 127.0.0.1, stopped at the end of the session."""
    name = str(request.param)
    with running_server(name, tmp_path_factory.mktemp(name), s3_credentials) as server:
        yield server


@contextmanager
def running_server(name: str, folder: Path, credentials: dict[str, str]) -> Iterator[S3Server]:
    """moto or rclone on a free port of 127.0.0.1 until the block ends; `folder` is for its log and its files."""
    port = _free_port()
    served = folder / "served"
    served.mkdir()
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(_command(name, port, served, credentials), stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process, log)
        yield S3Server(name, f"http://127.0.0.1:{port}", credentials)
    finally:
        process.terminate()
        process.wait(timeout=20)


def _command(name: str, port: int, folder: Path, environment: dict[str, str]) -> list[str]:
    programs = Path(sys.executable).parent
    if name == "moto":
        return [str(programs / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    key = f"{environment['AWS_ACCESS_KEY_ID']},{environment['AWS_SECRET_ACCESS_KEY']}"
    program = [str(programs / "rclone"), "serve", "s3", "--config", ""]
    return [*program, "--addr", f"127.0.0.1:{port}", "--auth-key", key, str(folder)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not start: {log.read_text(errors='replace')[-2000:]}")
