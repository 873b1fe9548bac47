"""A real HTTP server on loopback whose every reply a test decides: delayed, cut off, reset, or just wrong."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """What arrived; `number` counts from 0."""

    number: int
    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.content)
        return body

    @property
    def prompt(self) -> str:
        prompt: str = self.body["messages"][-1]["content"]
        return prompt


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is sent. `cut`: only so many bytes of the content, then the connection ends. `reset`: nothing, and a RST."""

    status: int = 200
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    cut: int | None = None
    reset: bool = False
    trickle_s: float = 0.0  # between any two bytes


def completion(text: str | None, *, finish: str | None = "stop", usage: object = None, **message: object) -> Reply:
    """A chat completion as servers send it."""
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text} | message, "finish_reason": finish}],
        "usage": usage,
    }
    return Reply(content=json.dumps(body).encode())


class Server:
    """`base_url` for an engine, and the requests so far with their times of arrival (monotonic)."""

    def __init__(self, address: str, stopping: threading.Event) -> None:
        self.base_url = f"{address}/v1"
        self.stopping = stopping
        self.requests: list[Request] = []
        self.arrivals: list[float] = []
        self.lock = threading.Lock()

    def arrived(self, path: str, headers: Mapping[str, str], content: bytes) -> Request:
        with self.lock:
            request = Request(len(self.requests), path, headers, content)
            self.requests.append(request)
            self.arrivals.append(time.monotonic())
        return request


@contextmanager
def serving(answer: Callable[[Request], Reply]) -> Iterator[Server]:
    """A server on a free port of loopback until the block ends; `answer` is called from many threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            reply = answer(server.arrived(self.path, dict(self.headers), content))
            server.stopping.wait(reply.wait_s)
            try:
                self._send(reply)
            except OSError:  # the client did not wait
                self.close_connection = True

        def _send(self, reply: Reply) -> None:
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            if reply.trickle_s:
                for i in range(len(reply.content)):
                    self.wfile.write(reply.content[i : i + 1])
                    if server.stopping.wait(reply.trickle_s):
                        return
            else:
                self.wfile.write(reply.content[: reply.cut])
            self.close_connection = reply.cut is not None

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError, ValueError):  # the client, or a reset, ended the connection
                super().handle()

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    with Listener(("127.0.0.1", 0), Handler) as listener:
        server = Server(f"http://127.0.0.1:{listener.server_port}", threading.Event())
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.stopping.set()
        listener.shutdown()
        thread.join()
