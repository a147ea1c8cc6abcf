"""A server on loopback that answers as a test scripts it: for faults that a real one can't show."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What the server does with one request: a status and a body, or dropping the connection."""

    body: Any = None
    status: int = 200
    drop: bool = False
    wait: threading.Event | None = None


Script = Callable[[str, dict[str, Any]], Answer]


def chat(
    content: str | None,
    *,
    reasoning: str | None = None,
    finish: str = "stop",
    tokens: int | None = None,
    logprobs: list[float | None] | None = None,
) -> Answer:
    """Return a chat completion as SGLang answers it."""
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    words = f"{content or ''} {reasoning or ''}".split()
    usage = {"completion_tokens": len(words) if tokens is None else tokens}
    choice: dict[str, Any] = {"message": message, "finish_reason": finish}
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": "x", "logprob": each} for each in logprobs]}
    return Answer({"choices": [choice], "usage": usage})


@dataclass
class ScriptedServer:
    """``with ScriptedServer(script) as server`` listens on ``server.url``, on a free port.

    ``requests`` are the (path, body) that came, in order; ``most_at_once`` the largest number of
    requests that were being answered at one time.
    """

    script: Script
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    most_at_once: int = 0

    def __enter__(self) -> ScriptedServer:
        lock = threading.Lock()
        running = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                nonlocal running
                body = json.loads(
                    self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}"
                )
                with lock:
                    running += 1
                    server.requests.append((self.path, body))
                    server.most_at_once = max(server.most_at_once, running)
                try:
                    self.answer(server.script(self.path, body))
                finally:
                    with lock:
                        running -= 1

            do_GET = do_POST  # noqa: N815

            def answer(self, answer: Answer) -> None:
                if answer.wait:
                    answer.wait.wait()
                if answer.drop:
                    self.close_connection = True
                    return
                body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"
