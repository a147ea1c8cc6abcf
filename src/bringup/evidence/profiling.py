"""Have a server write profiler traces while it decodes a given number of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup.artifact import Document, document, reason
from bringup.endpoint import Endpoint, NoReplyError
from bringup.evidence.kernels import SCHEMA, kernels_document, profile_request
from bringup.evidence.log import decode_lines

OUTPUT_TOKENS = 256
"""Tokens of each request: some lines of decode statistics (one every 40 steps) and the profile."""

FULL_BATCH_S = 600.0
"""Seconds in which all requests must be seen decoding together: the first may compile kernels."""

TRACES_S = 600.0
"""Seconds in which the traces must be written: packing a large one takes minutes."""

SETTLED_S = 2.0
"""Seconds without a change after which a trace is taken to be written whole."""

POLL_S = 0.05
REPLY_S = 600.0


class ProfileError(RuntimeError):
    """The server did not give traces; ``class_`` groups why."""

    def __init__(self, class_: str, message: str) -> None:
        super().__init__(message)
        self.class_ = class_


def take_kernels(
    endpoint: Endpoint,
    server: Document,
    *,
    experiment: str,
    boot: str,
    log: Path,
    folder: Path,
    concurrency: int,
    ranks: int,
) -> Document:
    """Return ``kernels.json`` of a running server while it decodes ``concurrency`` requests.

    Args:
        endpoint: the server, which nobody else uses meanwhile.
        server: its ``server.json``.
        experiment: name of the experiment.
        boot: id of the server's life.
        log: its log, in which the decode statistics appear.
        folder: an empty folder for the traces, which stay there.
        concurrency: requests decoded at once.
        ranks: how many processes run the model: GPUs, or 0 on a CPU.

    Raises:
        NoReplyError: the server does not answer any more.
        OSError: a trace cannot be read.
    """
    try:
        traces = profile(endpoint, log=log, folder=folder, concurrency=concurrency, ranks=ranks)
    except ProfileError as error:
        why = reason(error.class_, str(error), hint="See server.log.")
        return document(SCHEMA, "failed", why, experiment=experiment, boot=boot)
    return kernels_document(
        traces, server, experiment=experiment, boot=boot, concurrency=concurrency
    )


def profile(
    endpoint: Endpoint, *, log: Path, folder: Path, concurrency: int, ranks: int
) -> list[Path]:
    """Return the traces that every rank of a server wrote; see `take_kernels`.

    The profile starts once the log shows that all requests are being decoded.

    Raises:
        ProfileError: it refused, or wrote no traces in time.
        NoReplyError: it does not answer any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start = log.stat().st_size
    with _load(endpoint, concurrency) as alive:
        _wait(
            lambda: _running(log, start) >= concurrency,
            FULL_BATCH_S,
            alive,
            ProfileError("no-full-batch", f"{concurrency} requests were not decoded at once"),
        )
        request = profile_request(str(folder.absolute()), on_gpu=ranks > 0)
        reply = endpoint.post("/start_profile", request, timeout_s=REPLY_S)
        if reply.status != 200:
            raise ProfileError("profile-refused", f"/start_profile: {reply.status} {reply.text}")
        written = _Written(folder, max(1, ranks))
        _wait(written, TRACES_S, alive, ProfileError("no-traces", "no trace was written in time"))
    return written.traces


def _running(log: Path, start: int) -> int:
    """Return how many requests were in the newest batches, one of each data-parallel rank.

    ``start`` is where the log ended before; a flooded one is cut, and then shorter than that.
    """
    start = start if start <= log.stat().st_size else 0
    newest = {line.ranks: line.running for line in decode_lines(log, start)}
    return sum(newest.values())


class _Written:
    """Whether every rank has written its trace whole."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._ranks = folder, ranks
        self._sizes: dict[Path, int] = {}
        self._since = time.monotonic()

    @property
    def traces(self) -> list[Path]:
        return sorted(self._sizes)

    def __call__(self) -> bool:
        sizes = {path: path.stat().st_size for path in self._folder.rglob("*.trace.json*")}
        if sizes != self._sizes:
            self._sizes, self._since = sizes, time.monotonic()
        settled = time.monotonic() - self._since >= SETTLED_S
        return len(sizes) >= self._ranks and min(sizes.values()) > 0 and settled


@contextmanager
def _load(endpoint: Endpoint, concurrency: int) -> Iterator[Callable[[], None]]:
    """Keep ``concurrency`` requests going; yields what raises if they fail."""
    enough = threading.Event()
    faults: list[Exception] = []

    def keep_asking(number: int) -> None:
        turn = 0
        while not enough.is_set():
            try:
                reply = endpoint.post("/generate", _request(number, turn), timeout_s=REPLY_S)
            except NoReplyError as fault:
                faults.append(fault)
                return
            if reply.status != 200:
                faults.append(
                    ProfileError("load-refused", f"/generate: {reply.status} {reply.text}")
                )
                return
            turn += 1

    def alive() -> None:
        if faults:
            raise faults[0]

    threads = [
        threading.Thread(target=keep_asking, args=(number,), daemon=True)
        for number in range(concurrency)
    ]
    for thread in threads:
        thread.start()
    try:
        yield alive
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _request(number: int, turn: int) -> Document:
    """Return a request like no other: equal prompts would choose equal experts."""
    return {
        "text": f"{37 * number + turn} + {53 * turn + number} = ? Then count on from {number}: ",
        "sampling_params": {"max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0},
    }


def _wait(
    done: Callable[[], bool], seconds: float, alive: Callable[[], None], late: ProfileError
) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        alive()
        if time.monotonic() > deadline:
            raise late
        time.sleep(POLL_S)
