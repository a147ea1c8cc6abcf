"""The load client: one process, one thread, one loop over sockets.

``python -m bringup.load.direct < JOB.json`` sends what the job says (`bringup.load.workload.Job`)
and writes a record of each request.  It exists because clients built on an event loop see a first
token late when many requests are sent at once, each of them waiting for its turn to be put together
and sent (docs/client-truth.md).  So here connections are open before the first request, requests
are put together before they are due, a request is timed as it is handed to the kernel and its
tokens as the kernel hands them over; what they say is read only as far as needed to count them, and
the rest afterwards.

How late it may have been it says itself: the time since it last looked at its sockets, and the time
for which it was ready to run but no core was free (``/proc/self/schedstat``).
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import select
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bringup import __version__

NAME = "sglang-bringup"

ARRIVALS_KEPT = 200_000
"""A run of at most so many tokens keeps when each arrived; a longer one, only when each request's
first and last did, and its longest gap."""

CONNECT_S = 10.0

BLOCK = 1 << 18

TAILS = 64
"""Random prompts differ in their first tokens; what follows is one of so many texts.  None of it is
found in a prefix cache, and a prompt of 8,000 tokens is put together in microseconds."""

COUNT = b'"completion_tokens":'


def main() -> None:
    """Read a job from standard input, run it, write its records."""
    job = json.load(sys.stdin)
    run = Loop(job)
    Path(job["output"]).write_text(json.dumps(run.document()), encoding="utf-8")


def bodies(job: dict[str, Any]) -> Iterator[bytes]:
    """Yield the requests' bodies, as many as the job asks for.

    Random prompts (``job["ids"]``) go to ``/generate`` as token ids, texts (``job["prompts"]``) to
    ``/v1/chat/completions``.
    """
    chance = random.Random(job["seed"])
    tokens = job["output_tokens"]
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        # An answer to random tokens may hold nothing but special ones, and it is seen by its text.
        "skip_special_tokens": False,
    }
    if job["prompts"] is None:
        end = b'],"sampling_params":%b,"stream":true}' % json.dumps(sampling).encode()
        for prompt in random_prompts(chance, job["ids"], job["input_tokens"], job["requests"]):
            yield b'{"input_ids":[' + prompt + end
        return
    order = list(job["prompts"])
    chance.shuffle(order)
    for messages in itertools.islice(itertools.cycle(order), job["requests"]):
        body = {
            "model": job["model"],
            "messages": messages,
            "max_tokens": tokens,
            **{key: sampling[key] for key in ("temperature", "ignore_eos", "skip_special_tokens")},
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        yield json.dumps(body).encode()


def random_prompts(
    chance: random.Random, ids: list[int], length: int, count: int
) -> Iterator[bytes]:
    """Yield ``count`` prompts of ``length`` random token ids, as text; no two begin alike."""
    width = min(length, heads_needed(len(ids), count))
    first = chance.sample(ids, len(ids))
    tails = [
        b",".join(b"%d" % each for each in chance.choices(ids, k=length - width))
        for _ in range(TAILS)
    ]
    for number in range(count):
        head = [first[number // len(ids) ** place % len(ids)] for place in range(width)]
        words = b",".join(b"%d" % each for each in head)
        yield words + b"," + tails[number % TAILS] if length > width else words


def heads_needed(vocabulary: int, count: int) -> int:
    """Return how many tokens give each of ``count`` prompts a beginning of its own."""
    width = 1
    while vocabulary > 1 and vocabulary**width < count:
        width += 1
    return width


@dataclass
class Request:
    """One request while it runs, and what it saw; times on the monotonic clock."""

    scheduled_s: float | None
    keeps_arrivals: bool
    sent_s: float = 0.0
    first: tuple[float, int] | None = None
    last: tuple[float, int] = (0.0, 0)
    longest_gap_s: float | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    last_event: bytes = b""
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None

    def chunk(self, event: bytes, now: float, chat: bool) -> None:
        """Note a server-sent event."""
        if chat:
            self._chat(event, now)
        elif self.first and (place := event.rfind(COUNT)) >= 0:
            digits = event[place + len(COUNT) : place + len(COUNT) + 12].lstrip()
            tokens = int(digits.split(b",")[0].split(b"}")[0])
            if tokens > self.last[1]:
                self._arrived(now, tokens)
            self.last_event = event
        else:
            self._native(event, now)

    def _native(self, event: bytes, now: float) -> None:
        content = self._read(event)
        if content.get("text") and "meta_info" in content:
            self._arrived(now, int(content["meta_info"].get("completion_tokens", 1)))
        self.last_event = event

    def _chat(self, event: bytes, now: float) -> None:
        """Note a piece of a chat: tokens by its own usage, else one for each piece."""
        content = self._read(event)
        usage = content.get("usage") or {}
        self.usage = usage or self.usage
        for choice in content.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            if delta.get("content") or delta.get("reasoning_content"):
                tokens = usage.get("completion_tokens") or self.last[1] + 1
                self._arrived(now, max(tokens, self.last[1]))

    def _arrived(self, now: float, tokens: int) -> None:
        """Note that there are ``tokens`` of the answer by now."""
        if self.first is None:
            self.first = now, tokens
        else:
            self.longest_gap_s = max(self.longest_gap_s or 0.0, now - self.last[0])
        self.last = now, tokens
        if self.keeps_arrivals:
            self.arrivals.append(self.last)

    def _read(self, event: bytes) -> dict[str, Any]:
        try:
            content = json.loads(event)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            self.error = self.error or f"no JSON object in an event: {event[:100]!r}"
            return {}
        if content.get("error") or content.get("object") == "error":
            said = content.get("error") or content
            told = said.get("message") if isinstance(said, dict) else said
            self.error = self.error or f"error inside HTTP 200: {str(told or said)[:300]}"
        return content

    def record(self, start_s: float, chat: bool) -> dict[str, Any]:
        """Return what is written of the request, times in seconds since ``start_s``."""
        if not chat and self.last_event:
            meta = self._read(self.last_event).get("meta_info") or {}
            reason = meta.get("finish_reason")
            self.finish_reason = reason.get("type") if isinstance(reason, dict) else reason
            self.usage = meta
            if self.finish_reason == "abort" and isinstance(reason, dict):
                self.error = self.error or f"aborted: {reason.get('message', 'no reason given')}"
        if not self.error and not self.first:
            self.error = "HTTP 200 and not one token"
        details = self.usage.get("prompt_tokens_details") or self.usage
        first = self.first
        return {
            "sent_s": self.sent_s - start_s,
            "scheduled_s": None if self.scheduled_s is None else self.scheduled_s - start_s,
            "first_token_s": first[0] - start_s if first else None,
            "last_token_s": self.last[0] - start_s if first else None,
            "input_tokens": self.usage.get("prompt_tokens") or 0,
            "output_tokens": self.usage.get("completion_tokens") or self.last[1],
            "cached_tokens": details.get("cached_tokens"),
            "first_chunk_tokens": first[1] if first else 0,
            "longest_gap_s": self.longest_gap_s,
            "finish_reason": self.finish_reason,
            "error": self.error,
            "arrivals": [[round(1000 * (at - self.sent_s), 2), n] for at, n in self.arrivals]
            if self.keeps_arrivals
            else None,
        }


class Answer:
    """Reads one HTTP answer: yields its server-sent events as they come whole."""

    def __init__(self) -> None:
        self._raw, self._text = bytearray(), bytearray()
        self._chunked, self._left = False, -1
        self.status, self.over, self.keeps_alive = 0, False, True

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; return the events that ended with it."""
        self._raw += data
        if not self.status and not self._head():
            return []
        if self._chunked:
            self._unchunk()
        else:
            self._text += self._raw
            self._left -= len(self._raw)
            self._raw.clear()
            self.over = self._left == 0
        if self.status != 200:
            return []
        *whole, rest = self._text.split(b"\n\n")
        self._text = rest
        found = [bytes(each[5:]).strip() for each in whole if each.startswith(b"data:")]
        return [each for each in found if each != b"[DONE]"]

    @property
    def text(self) -> str:
        """What came and is no whole event: the body of an answer that is no stream."""
        return self._text.decode("utf-8", "replace").strip()

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._raw[:end].decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(":", 1) for line in lines if ":" in line)
        version, status, *_ = first.split(" ")
        self.status = int(status)
        said = fields.get("connection", "").strip()
        self.keeps_alive = said != "close" and (version != "HTTP/1.0" or said == "keep-alive")
        self._chunked = "chunked" in fields.get("transfer-encoding", "")
        self._left = int(fields.get("content-length", -1))
        del self._raw[: end + 4]
        return True

    def _unchunk(self) -> None:
        while (line := self._raw.find(b"\r\n")) >= 0:
            size = int(self._raw[:line].split(b";")[0], 16)
            if len(self._raw) < line + 2 + size + 2:
                return
            self._text += self._raw[line + 2 : line + 2 + size]
            del self._raw[: line + 2 + size + 2]
            if size == 0:
                self.over = True
                return


class Connection:
    """One connection to the server, and the request that runs on it."""

    def __init__(self, address: tuple[str, int], poll: select.epoll) -> None:
        self._address, self._poll = address, poll
        self._socket: socket.socket | None = None
        self._unsent, self._polled_to_send = b"", False
        self.request: Request | None = None
        self.answer = Answer()

    def open(self) -> int:
        """Connect, unless there is a connection that the server has left open.

        Returns the descriptor.

        Raises:
            OSError: the server did not take the connection.
        """
        if self._socket is not None and self._was_closed():
            self.close()
        if self._socket is None:
            opened = socket.create_connection(self._address, timeout=CONNECT_S)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setblocking(False)
            self._poll.register(opened, select.EPOLLIN)
            self._socket, self._polled_to_send = opened, False
        return self.descriptor

    @property
    def descriptor(self) -> int:
        """The socket's descriptor, -1 while there is none."""
        return self._socket.fileno() if self._socket else -1

    def close(self) -> None:
        """Hang up: the server is to stop working on what runs here."""
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
        self._socket, self._unsent = None, b""

    def _was_closed(self) -> bool:
        """Tell whether the server has hung up: it may, where nothing was sent for seconds."""
        assert self._socket is not None
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def start(self, request: Request, data: bytes) -> None:
        """Send a request."""
        self.request, self.answer = request, Answer()
        self._unsent = data
        request.sent_s = time.monotonic()
        self.push()

    def push(self) -> None:
        """Send what was not taken yet."""
        assert self._socket is not None
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        self._unsent = self._unsent[sent:]
        if self._polled_to_send != bool(self._unsent):
            self._polled_to_send = bool(self._unsent)
            wanted = select.EPOLLIN | (select.EPOLLOUT if self._polled_to_send else 0)
            self._poll.modify(self._socket, wanted)

    def receive(self) -> bytes | None:
        """Return what has come: None if that is nothing yet, b"" if the server hung up."""
        assert self._socket is not None
        if self._unsent:
            self.push()
        try:
            return self._socket.recv(BLOCK)
        except BlockingIOError:
            return None


class Loop:
    """A run: requests out when they are due, answers in as they come."""

    def __init__(self, job: dict[str, Any]) -> None:
        address = urlsplit(job["url"])
        self._chat = job["prompts"] is not None
        path = "/v1/chat/completions" if self._chat else "/generate"
        key = f"Authorization: Bearer {job['api_key']}\r\n" if job["api_key"] else ""
        self._head = (
            f"POST {address.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\n{key}Content-Length: "
        ).encode()
        self._bodies, self._timeout_s = bodies(job), job["timeout_s"]
        self._keeps_arrivals = job["requests"] * job["output_tokens"] <= ARRIVALS_KEPT
        self._due = iter(job["schedule_s"]) if job["schedule_s"] else None
        self._poll = select.epoll()
        server = (address.hostname or "", address.port or 80)
        count = min(job["concurrency"], job["requests"])
        self._idle = [Connection(server, self._poll) for _ in range(count)]
        self._busy: dict[int, Connection] = {}
        self._done: list[Request] = []
        self._lateness = Lateness()
        self._run()

    def document(self) -> dict[str, Any]:
        """Return what is written: the client and how it fared, and the records."""
        return {
            "client": {"name": NAME, "version": __version__, **self._lateness.figures()},
            "start_s": self._start_s,
            "clock_step_s": self._clock_step_s,
            "records": [
                each.record(self._start_s, self._chat)
                for each in sorted(self._done, key=lambda each: each.sent_s)
            ],
        }

    def _run(self) -> None:
        for connection in self._idle:
            connection.open()
        prepared = self._prepared()
        waiting = next(prepared, None)
        gc.disable()  # a collection takes milliseconds; what is kept here refers to nothing else
        wall, self._start_s = time.time(), time.monotonic()
        self._lateness.begin()
        while waiting or self._busy:
            now = time.monotonic()
            while waiting and self._idle and self._is_due(waiting[0], now):
                self._start(*waiting)
                waiting = next(prepared, None)
            self._give_up(now)
            wait = self._wait(waiting, time.monotonic())
            self._lateness.looked()
            ready = self._poll.poll(wait)
            now = time.monotonic()
            firsts = sum(self._receive(descriptor, now) for descriptor, _ in ready)
            self._lateness.handled(now, len(ready), firsts)
        self._clock_step_s = time.time() - wall - (time.monotonic() - self._start_s)
        self._lateness.end()
        gc.enable()

    def _prepared(self) -> Iterator[tuple[float | None, bytes]]:
        """Yield when each request is due (seconds after the start, None: at once) and its bytes."""
        for body in self._bodies:
            due = next(self._due) if self._due else None
            yield due, b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def _is_due(self, due_s: float | None, now: float) -> bool:
        return due_s is None or self._start_s + due_s <= now

    def _start(self, due_s: float | None, data: bytes) -> None:
        connection = self._idle.pop()
        scheduled = None if due_s is None else self._start_s + due_s
        request = Request(scheduled, self._keeps_arrivals)
        try:
            self._busy[connection.open()] = connection
            connection.start(request, data)
        except OSError as error:
            request.sent_s = request.sent_s or time.monotonic()
            self._end(connection, request, f"{type(error).__name__}: {error}")

    def _wait(self, waiting: tuple[float | None, bytes] | None, now: float) -> float:
        """Return how long nothing is to be done but to receive, in seconds."""
        times = [
            connection.request.sent_s + self._timeout_s
            for connection in itertools.islice(self._busy.values(), 1)  # the oldest
            if connection.request
        ]
        if waiting and self._idle:
            times.append(self._start_s + (waiting[0] or 0.0))
        return max(0.0, min(times, default=now) - now)

    def _give_up(self, now: float) -> None:
        """End requests that take too long; they stand in the order of their sending."""
        for connection in list(self._busy.values()):
            request = connection.request
            if request is None or now - request.sent_s < self._timeout_s:
                return
            self._end(connection, request, f"no end after {self._timeout_s:g} s")

    def _receive(self, descriptor: int, now: float) -> bool:
        """Take what came on a connection; return whether a first token was in it."""
        connection = self._busy.get(descriptor)
        if connection is None or connection.request is None:
            self._drop(descriptor)
            return False
        request = connection.request
        began = request.first is not None
        try:
            data = connection.receive()
            if data is None:
                return False
            events = connection.answer.feed(data)
        except (OSError, ValueError) as error:
            self._end(connection, request, f"{type(error).__name__}: {error}")
            return False
        for event in events:
            request.chunk(event, now, self._chat)
        answer = connection.answer
        if answer.over:
            refused = answer.status != 200
            why = f"HTTP {answer.status}: {answer.text[:300]}" if refused else request.error
            self._end(connection, request, why)
        elif not data:
            self._end(connection, request, "the server hung up in the middle")
        return not began and request.first is not None

    def _end(self, connection: Connection, request: Request, error: str | None) -> None:
        """Keep a request that has ended; one that went wrong takes its connection with it."""
        request.error = error
        self._done.append(request)
        connection.request = None
        self._busy.pop(connection.descriptor, None)
        if error or not connection.answer.keeps_alive:
            connection.close()
        self._idle.append(connection)

    def _drop(self, descriptor: int) -> None:
        """Close a connection that the server has closed while nothing ran on it."""
        for connection in self._idle:
            if connection.descriptor == descriptor:
                connection.close()
                return


class Lateness:
    """How late the client may have seen what happened."""

    def __init__(self) -> None:
        self._looked_s = self._busy_s = self._cpu_s = self._window_s = 0.0
        self._all: list[float] = []
        self._firsts: list[float] = []
        self._queued = (0, 0)
        self._wait_s = 0.0

    def begin(self) -> None:
        """Start: the first request is about to be sent."""
        self._cpu_s, self._window_s = time.process_time(), time.monotonic()
        self._looked_s = self._window_s
        self._queued = queued()

    def looked(self) -> None:
        """Note that the sockets are looked at."""
        now = time.monotonic()
        self._busy_s, self._looked_s = now - self._looked_s, now

    def handled(self, now: float, events: int, firsts: int) -> None:
        """Note how many events were seen at ``now``, and how many of them were first tokens.

        Each may have come at any time since the sockets were last looked at, if that was not
        spent waiting for it.
        """
        self._all += [self._busy_s] * events
        self._firsts += [self._busy_s / 2] * firsts
        self._looked_s = now

    def end(self) -> None:
        """End: the last answer has come."""
        self._cpu_s = time.process_time() - self._cpu_s
        self._window_s = time.monotonic() - self._window_s
        waited, slices = (
            after - before for after, before in zip(queued(), self._queued, strict=True)
        )
        self._wait_s = waited / 1e9 / slices if slices else 0.0

    def figures(self) -> dict[str, float | None]:
        """Return the client's share of a core and its lateness in ms."""
        wait_ms, late, firsts = 1000 * self._wait_s, sorted(self._all), sorted(self._firsts)
        return {
            "cpu_share": self._cpu_s / self._window_s if self._window_s > 0 else None,
            "loop_late_ms_p99": wait_ms + 1000 * late[int(0.99 * (len(late) - 1))]
            if late
            else None,
            "loop_late_ms_max": wait_ms + 1000 * late[-1] if late else None,
            "ttft_late_ms": wait_ms + 1000 * firsts[len(firsts) // 2] if firsts else None,
        }


def queued() -> tuple[int, int]:
    """Return for how many ns this process was ready and waited for a core, and how often it ran.

    0, 0 where the kernel does not count that (``CONFIG_SCHED_INFO``).
    """
    try:
        _, waited, slices = Path("/proc/self/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(waited), int(slices)


if __name__ == "__main__":
    main()
