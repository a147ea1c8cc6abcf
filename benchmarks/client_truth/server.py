"""A server whose speed is known: it answers like SGLang, each token at a time fixed beforehand.

Run as a program: ``server.py --port PORT --processes N --folder FOLDER``; it serves until its
standard input ends, so that it never outlives who started it.  The first two parts of a request's
path are the scenario (`SCENARIOS`) and the name of the run; what really happened is written to
``FOLDER/<run>.<pid>.jsonl``, one request a line, to compare a client's figures with.

One loop over sockets and a heap of what is due: 10 µs a token and no more, as what a server does in
a burst its clients see as time to first token.  Answers are made beforehand, once for all requests
alike, and what happened is written when no request runs.
"""

from __future__ import annotations

import argparse
import functools
import gc
import heapq
import itertools
import json
import multiprocessing
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Scenario:
    """How a server behaves.

    ``ttft_s`` and ``tpot_s`` are the truth; ``chunk`` tokens come at once (the first alone unless
    ``bundle_first``); it stops after ``stop_at`` tokens, sends an ``error`` inside HTTP 200, sends
    a chunk with a role and no text half-way to the first token, or takes ``info_s`` for
    /server_info.
    """

    what: str
    ttft_s: float = 0.2
    tpot_s: float = 0.01
    chunk: int = 1
    bundle_first: bool = False
    stop_at: int | None = None
    error: bool = False
    role_chunk: bool = False
    info_s: float = 0.0


SCENARIOS = {
    "base": Scenario("one token a chunk"),
    "early-stop": Scenario("stops at 20 of the 50 tokens asked for", stop_at=20),
    "error-in-200": Scenario("an error inside HTTP 200", error=True),
    "chunks-of-20": Scenario("20 tokens a chunk, the first alone", chunk=20),
    "bundled-first": Scenario("20 tokens a chunk, the first too", chunk=20, bundle_first=True),
    "role-chunk": Scenario("an empty role chunk half-way to the first token", role_chunk=True),
    "slow-info": Scenario("GET /server_info takes 3 s", info_s=3.0),
    "load": Scenario("50 tokens a second for each stream", ttft_s=0.5, tpot_s=0.02),
}


@dataclass(frozen=True)
class Chunk:
    """Tokens that are sent together: how many there are by then, and when they are due."""

    tokens: int
    due_s: float


def chunks(scenario: Scenario, asked: int) -> list[Chunk]:
    """Return what is sent of ``asked`` tokens; times count from the request's arrival."""
    total = min(asked, scenario.stop_at or asked)
    sizes = [] if scenario.bundle_first else [1]
    while sum(sizes) < total:
        sizes.append(min(scenario.chunk, total - sum(sizes)))
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [Chunk(end, scenario.ttft_s + (end - 1) * scenario.tpot_s) for end in ends]


@dataclass
class Stream:
    """An answer that is being sent: its pieces, each with when it is due, and what went out."""

    connection: Connection
    run: str
    pieces: Pieces
    arrived_s: float
    prompt_tokens: int
    sent_s: list[float] = field(default_factory=list)
    late_s: float = 0.0
    next: int = 0


@dataclass(frozen=True)
class Pieces:
    """What an answer consists of.

    Each part: seconds after the request's arrival, bytes, tokens by then (None: it is none).
    """

    parts: tuple[tuple[float, bytes, int | None], ...]
    end: bytes
    tokens: int
    first_chunk_tokens: int


Usage = Literal["none", "end", "each"]
"""Where a chat's answer says how many tokens it has: nowhere, in a last piece, or in each."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def event(content: Any) -> bytes:
    """Return one server-sent event as one HTTP chunk."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


@functools.lru_cache(maxsize=256)
def pieces(name: str, asked: int, chat: bool, usage: Usage, prompt_tokens: int) -> Pieces:
    """Return the answer of a scenario to all requests that ask for so much."""
    scenario = SCENARIOS[name]
    if scenario.error:
        failed = event({"error": {"message": "out of memory", "code": 500}}) + b"0\r\n\r\n"
        return Pieces(((0.0, STREAM_HEAD + failed, None),), b"", 0, 0)
    parts: list[tuple[float, bytes, int | None]] = []
    if scenario.role_chunk and chat:
        parts.append((scenario.ttft_s / 2, event(chat_chunk("", role="assistant")), None))
    planned = chunks(scenario, asked)
    before = 0
    for chunk in planned:
        last = chunk is planned[-1]
        why = {"type": "length", "length": chunk.tokens} if last else None
        meta = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": chunk.tokens,
            "cached_tokens": 0,
            "finish_reason": why,
        }
        native = {"text": " a" * chunk.tokens, "meta_info": meta}
        said = chat_chunk(" a" * (chunk.tokens - before), last=last) if chat else native
        if chat and usage == "each":
            said["usage"] = counted(prompt_tokens, chunk.tokens)
        parts.append((chunk.due_s, event(said), chunk.tokens))
        before = chunk.tokens
    parts[0] = (parts[0][0], STREAM_HEAD + parts[0][1], parts[0][2])
    whole = {"choices": [], "usage": counted(prompt_tokens, before)}
    end = event(whole) if usage != "none" else b""
    return Pieces(tuple(parts), end + event("[DONE]") + b"0\r\n\r\n", before, planned[0].tokens)


def counted(prompt: int, completion: int) -> dict[str, int]:
    """Return the usage of a chat completion."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def chat_chunk(text: str, last: bool = False, **more: Any) -> dict[str, Any]:
    """Return one streamed piece of a chat completion."""
    why = "length" if last else None
    choice = {"index": 0, "delta": {"content": text, **more}, "finish_reason": why}
    return {"object": "chat.completion.chunk", "model": "truth", "choices": [choice]}


class Connection:
    """One client's connection: requests in, answers out, one after the other."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw, self._read, self._unsent = raw, bytearray(), b""

    def requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield path and body of each request that has arrived whole.

        Raises:
            ConnectionError: the client went away.
        """
        while (data := self._received()) is not None:
            if not data:
                raise ConnectionError("closed")
            self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            lines = self._read[:end].decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            whole = end + 4 + int(fields.get("content-length", 0))
            if len(self._read) < whole:
                return
            body = json.loads(self._read[end + 4 : whole] or b"{}")
            del self._read[:whole]
            yield lines[0].split(" ")[1], body

    def send(self, data: bytes) -> None:
        """Send now what fits, and the rest before what comes next."""
        data = self._unsent + data
        try:
            sent = self.raw.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]

    def answer(self, content: Any) -> None:
        """Send a whole JSON answer."""
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.send(head.encode() + b"\r\n\r\n" + body)

    def _received(self) -> bytes | None:
        try:
            return self.raw.recv(1 << 20)
        except BlockingIOError:
            return None


class Server:
    """One process of the server."""

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        self._listener, self._folder = listener, folder
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._running = 0
        self._truth: list[tuple[str, dict[str, Any]]] = []

    def serve(self) -> None:
        """Serve until the process is ended."""
        while True:
            wait = max(0.0, self._due[0][0] - time.perf_counter()) if self._due else -1
            ready = self._poll.poll(wait)
            now = time.perf_counter()
            for descriptor, _ in ready:
                if descriptor == self._listener.fileno():
                    self._accept()
                else:
                    self._read(descriptor, now)
            while self._due and self._due[0][0] <= time.perf_counter():
                _, _, call = heapq.heappop(self._due)
                call()
            if not self._running and self._truth:
                self._write()

    def _accept(self) -> None:
        raw, _ = self._listener.accept()
        self._connections[raw.fileno()] = Connection(raw)
        self._poll.register(raw, select.EPOLLIN)

    def _read(self, descriptor: int, now: float) -> None:
        connection = self._connections[descriptor]
        try:
            for path, body in connection.requests():
                self._start(connection, path, body, now)
        except ConnectionError:
            del self._connections[descriptor]
            self._poll.unregister(descriptor)
            connection.raw.close()

    def _start(self, connection: Connection, path: str, body: dict[str, Any], now: float) -> None:
        _, scenario, run, *rest = path.split("?")[0].split("/")
        where = "/".join(rest)
        if where in ("generate", "v1/chat/completions"):
            stream = streamed(connection, scenario, run, body, where != "generate", now)
            self._running += 1
            self._schedule(stream)
        elif where == "server_info":
            due = now + SCENARIOS[scenario].info_s
            self._at(due, functools.partial(connection.answer, {}))
        else:
            connection.answer({"data": [{"id": "truth"}]} if where == "v1/models" else {})

    def _at(self, due: float, call: Any) -> None:
        heapq.heappush(self._due, (due, next(self._order), call))

    def _schedule(self, stream: Stream) -> None:
        due = stream.arrived_s + stream.pieces.parts[stream.next][0]
        self._at(due, functools.partial(self._send, stream, due))

    def _send(self, stream: Stream, due: float) -> None:
        _, data, tokens = stream.pieces.parts[stream.next]
        stream.next += 1
        last = stream.next == len(stream.pieces.parts)
        now = time.perf_counter()
        try:
            stream.connection.send(data + stream.pieces.end if last else data)
        except ConnectionError:
            last, tokens = True, None
        if tokens is not None:
            stream.sent_s.append(now)
            stream.late_s = max(stream.late_s, now - due)
        if last:
            self._running -= 1
            if len(stream.sent_s) and stream.next == len(stream.pieces.parts):
                self._truth.append((stream.run, told(stream)))
        else:
            self._schedule(stream)

    def _write(self) -> None:
        """Write what happened; there is time for it, as no request runs."""
        for run, truth in self._truth:
            with (self._folder / f"{run}.{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(truth) + "\n")
        self._truth.clear()


def streamed(
    connection: Connection, name: str, run: str, body: dict[str, Any], chat: bool, now: float
) -> Stream:
    """Return the answer to a request for a generation."""
    sampling = body.get("sampling_params") or {}
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"), 1)
    asked = sampling.get("max_new_tokens") or next(filter(None, limits))
    prompt_tokens = len(body.get("input_ids") or [0])
    options = body.get("stream_options") or {}
    each = options.get("continuous_usage_stats")
    usage: Usage = "none" if not options.get("include_usage") else "each" if each else "end"
    return Stream(
        connection, run, pieces(name, asked, chat, usage, prompt_tokens), now, prompt_tokens
    )


def told(stream: Stream) -> dict[str, Any]:
    """Return what happened to a request."""
    return {
        "sent_s": stream.arrived_s,
        "first_token_s": stream.sent_s[0],
        "last_token_s": stream.sent_s[-1],
        "input_tokens": stream.prompt_tokens,
        "output_tokens": stream.pieces.tokens,
        "first_chunk_tokens": stream.pieces.first_chunk_tokens,
        "late_s": stream.late_s,
    }


def work(port: int, folder: Path) -> None:
    """Run one process of the server, on a port that the others listen on, too."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    gc.disable()  # nothing here refers to itself
    Server(listener, folder).serve()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    workers = [
        multiprocessing.Process(target=work, args=(options.port, options.folder), daemon=True)
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
