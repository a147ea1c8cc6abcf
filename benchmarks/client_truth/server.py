"""A server whose speed is known: it answers like SGLang, each token at a time fixed beforehand.

Run as a program: ``server.py --port PORT --processes N --folder FOLDER``; it serves until its
standard input ends, so that it never outlives who started it.  The first two parts of a request's
path are the scenario (`SCENARIOS`) and the name of the run; what really happened is written to
``FOLDER/<run>.<pid>.jsonl``, one request a line, to compare a client's figures with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
class Request:
    """One HTTP request."""

    path: str
    body: dict[str, Any]
    arrived_s: float


class Connection:
    """One client's connection: requests in, answers out, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def requests(self) -> AsyncIterator[Request]:
        """Yield requests until the client closes."""
        while head := await self._head():
            lines = head.decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await self._reader.readexactly(int(fields.get("content-length", 0)))
            yield Request(lines[0].split(" ")[1], json.loads(body or b"{}"), time.perf_counter())

    async def answer(self, content: Any) -> None:
        """Send a whole JSON answer."""
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        await self._writer.drain()

    def start_stream(self) -> None:
        """Begin an answer of server-sent events."""
        self._writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def event(self, content: Any) -> None:
        """Send one event."""
        text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
        data = f"data: {text}\n\n".encode()
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    def end_stream(self) -> None:
        """End an answer of server-sent events."""
        self._writer.write(b"0\r\n\r\n")

    async def _head(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


class Truth:
    """What happened, kept in memory and written when a run's file is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, list[str]] = defaultdict(list)

    def add(self, run: str, **fields: Any) -> None:
        """Keep one request."""
        self._lines[run].append(json.dumps(fields))

    async def write(self) -> None:
        """Write what came since the last time, ten times a second."""
        while True:
            await asyncio.sleep(0.1)
            for run, lines in self._lines.items():
                with (self._folder / f"{run}.{os.getpid()}.jsonl").open("a") as file:
                    file.write("\n".join(lines) + "\n")
            self._lines.clear()


async def stream(connection: Connection, request: Request, run: str, truth: Truth) -> None:
    """Answer one generation, each chunk when it is due, and record when it really went out."""
    scenario = SCENARIOS[request.path.split("/")[1]]
    chat = request.path.endswith("/chat/completions")
    sampling = request.body.get("sampling_params") or {}
    body = request.body
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"), 1)
    asked = sampling.get("max_new_tokens") or next(filter(None, limits))
    prompt_tokens = len(request.body.get("input_ids") or [0])
    connection.start_stream()
    if scenario.error:
        await connection.event({"error": {"message": "out of memory", "code": 500}})
        connection.end_stream()
        return
    if scenario.role_chunk and chat:
        await asyncio.sleep(scenario.ttft_s / 2)
        await connection.event(chat_chunk("", role="assistant"))
    sent: list[float] = []
    late_s, before = 0.0, 0
    planned = chunks(scenario, asked)
    for chunk in planned:
        due = request.arrived_s + chunk.due_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        sent.append(time.perf_counter())
        late_s = max(late_s, sent[-1] - due)
        if chat:
            await connection.event(chat_chunk(" a" * (chunk.tokens - before)))
        else:
            meta = {"prompt_tokens": prompt_tokens, "completion_tokens": chunk.tokens}
            await connection.event({"text": " a" * chunk.tokens, "meta_info": meta})
        before = chunk.tokens
    if (request.body.get("stream_options") or {}).get("include_usage"):
        await connection.event({"choices": [], "usage": {"completion_tokens": before}})
    await connection.event("[DONE]")
    connection.end_stream()
    truth.add(
        run,
        sent_s=request.arrived_s,
        first_token_s=sent[0],
        last_token_s=sent[-1],
        input_tokens=prompt_tokens,
        output_tokens=before,
        first_chunk_tokens=planned[0].tokens,
        late_s=late_s,
    )


def chat_chunk(text: str, **more: Any) -> dict[str, Any]:
    """Return one streamed piece of a chat completion."""
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": None}]}


async def converse(connection: Connection, truth: Truth) -> None:
    """Answer everything that comes on one connection."""
    async for request in connection.requests():
        _, scenario, run, *rest = request.path.split("?")[0].split("/")
        path = "/".join(rest)
        if path in ("generate", "v1/chat/completions"):
            await stream(connection, request, run, truth)
        elif path == "v1/models":
            await connection.answer({"data": [{"id": "truth"}]})
        elif path == "server_info":
            await asyncio.sleep(SCENARIOS[scenario].info_s)
            await connection.answer({})
        else:
            await connection.answer({})


async def serve(listener: socket.socket, folder: Path) -> None:
    """Serve on a socket that other processes listen on, too."""
    truth = Truth(folder)
    writing = asyncio.create_task(truth.write())

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await converse(Connection(reader, writer), truth)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            writer.close()

    async with await asyncio.start_server(connected, sock=listener, backlog=4096):
        await writing


def work(port: int, folder: Path) -> None:
    """Run one process of the server."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    asyncio.run(serve(listener, folder))


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
