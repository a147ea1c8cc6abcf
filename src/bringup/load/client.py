"""Run SGLang's own load client and write down what each request saw.

This file runs in an engine's interpreter, inside a process that stays up: importing the client
takes 10 s and more.  It imports SGLang and the standard library only.

The client's result file holds no send times, and its own figures have known faults: an error
inside HTTP 200 counts as success, and `/server_info` is fetched inside the timed window (SGLang
0.5.23, benchmark/serving.py).  So its request functions send the requests, each is recorded as it
starts and ends, and the figures are computed elsewhere from the records.

Three more of its habits are changed.  Random prompts start with different tokens, so that none is
found in the prefix cache (its ``random-ids`` prompts are runs of consecutive ids, which repeat in
a small vocabulary), and hold no special tokens.  No tokenizer is loaded: the client would allow
it to run code that comes with the checkpoint, and needs it only to count tokens again.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import math
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
"""Where the client lies: since 0.5.2x, and before (0.5.13.post1 has only the second)."""

TIMEOUT, API_KEY = "--request-timeout-s", "--api-key"
"""Arguments of ours, taken off before the client parses (and prints) the rest: seconds for one
request, and the server's key, which the client takes from its environment."""

TICK_S = 0.01
"""How often the event loop's lateness is looked at."""

TURNS = 5
"""Time to first token is off by about so many turns on the event loop, at 1 to 64 requests at once
(docs/client-truth.md)."""

Send = Callable[..., Awaitable[Any]]


def warm() -> Any:
    """Import the client, once, and return its module."""
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or ""):
                raise
    raise RuntimeError(f"this SGLang has no load client: none of {', '.join(MODULES)}")


def run(argv: list[str], output: str) -> None:
    """Send the load that ``argv`` (arguments of ``sglang.bench_serving``) asks for.

    Writes ``output``, a JSON object: ``client`` (name, version, CPU share, lateness of its event
    loop), ``start_s``, when the first request was sent on the machine's monotonic clock,
    ``clock_step_s``, by how much the clock on the wall moved against that one meanwhile, and
    ``records``, one for each request in the order of sending, times in seconds since then.

    Raises:
        RuntimeError: the client refused its arguments or sent nothing.
    """
    module = warm()
    own, argv = _own_arguments(argv)
    recorder = Recorder(module, float(own[TIMEOUT]) if TIMEOUT in own else None)
    senders = {name: recorder.recording(f) for name, f in module.ASYNC_REQUEST_FUNCS.items()}
    failure = ""
    with (
        mock.patch.dict(module.ASYNC_REQUEST_FUNCS, senders),
        mock.patch.object(module, "get_dataset", _distinct_prompts(module)),
        mock.patch.object(module, "get_tokenizer", Uncounted),
        mock.patch.object(module, "check_chat_template", lambda model: True),
        mock.patch.dict(os.environ, {"OPENAI_API_KEY": own[API_KEY]} if API_KEY in own else {}),
        mock.patch.object(sys, "argv", [module.__file__, *argv]),
    ):
        try:
            exec(_main(module), vars(module))
        except (Exception, SystemExit) as error:
            # Its summary fails where nothing succeeded; the records say so better.
            failure = f"{type(error).__name__}: {error}"
    if not recorder.records:
        raise RuntimeError(f"the load client sent nothing ({failure or 'and said nothing'})")
    Path(output).write_text(json.dumps(recorder.document()), encoding="utf-8")


class Recorder:
    """Records of one run, and how well the client kept up."""

    def __init__(self, module: Any, timeout_s: float | None) -> None:
        self.records: list[dict[str, Any]] = []
        self._module = module
        self._timeout_s = timeout_s
        self._lateness: list[float] = []
        self._waited: list[float] = []
        self._watcher: asyncio.Task[None] | None = None
        self._start = self._end = self._cpu_start = self._cpu_end = self._wall = 0.0

    def recording(self, send: Send) -> Send:
        """Return ``send``, one of the client's request functions, made to leave a record."""

        async def recorded(request_func_input: Any, pbar: Any = None) -> Any:
            sent = self._begin()
            record: dict[str, Any] = {}
            self.records.append(record)
            try:
                seen = await asyncio.wait_for(send(request_func_input, pbar), self._timeout_s)
            except asyncio.TimeoutError:  # noqa: UP041 - not the built-in one on Python 3.10
                seen = self._module.RequestFuncOutput.init_new(request_func_input)
                seen.error = f"no end after {self._timeout_s:g} s"
            self._end, self._cpu_end = time.monotonic(), time.process_time()
            record.update(_record(seen, (seen.start_time or sent) - self._start))
            return seen

        return recorded

    def document(self) -> dict[str, Any]:
        """Return what is written: the client, its share of a core, its lateness, the records."""
        late, waited = sorted(self._lateness), sorted(self._waited)
        window = self._end - self._start
        return {
            "client": {
                "name": self._module.__name__,
                "version": importlib.import_module("sglang").__version__,
                "cpu_share": (self._cpu_end - self._cpu_start) / window if window > 0 else None,
                "loop_late_ms_p99": 1000 * late[int(0.99 * (len(late) - 1))] if late else None,
                "loop_late_ms_max": 1000 * late[-1] if late else None,
                "ttft_late_ms": 1000 * TURNS * waited[len(waited) // 2] if waited else None,
            },
            "start_s": self._start,
            "clock_step_s": time.time() - self._wall - (time.monotonic() - self._start),
            "records": [record for record in self.records if record],
        }

    def _begin(self) -> float:
        """Note that a request starts; return when.

        Requests that start together take turns on the event loop, and their first tokens do so
        again: how long a turn takes is how far time to first token is off at this end.
        """
        now = time.monotonic()
        asyncio.get_running_loop().call_soon(lambda: self._waited.append(time.monotonic() - now))
        if self._watcher is None:
            self._start, self._cpu_start, self._wall = now, time.process_time(), time.time()
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return now

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lateness.append(max(0.0, time.monotonic() - due))


def _record(seen: Any, sent_s: float) -> dict[str, Any]:
    """Return one request's record from what the client kept of it.

    The native request function spreads the gap before a chunk over the chunk's tokens, so the gaps
    sum up to the time of the last token, and the tokens without a gap are those of the first chunk.
    """
    gaps, began = list(seen.itl), seen.ttft > 0
    if seen.success:
        error = None if began else "HTTP 200 and not one token"
        tokens = seen.output_len if began else 0
    else:
        error = seen.error or "failed without a word"
        tokens = len(gaps) + began
    return {
        "sent_s": sent_s,
        "first_token_s": sent_s + seen.ttft if began else None,
        "last_token_s": sent_s + seen.ttft + math.fsum(gaps) if began else None,
        "input_tokens": seen.prompt_len,
        "output_tokens": tokens,
        "first_chunk_tokens": tokens - len(gaps) if began else 0,
        "longest_gap_s": max(gaps, default=None),
        "error": error and error.strip().splitlines()[-1][:400],
    }


class Uncounted:
    """Stands for a tokenizer: the client counts tokens again with it, which nobody reads here."""

    def __init__(self, *_: Any) -> None:
        self.vocab_size = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return no tokens."""
        return []


def _distinct_prompts(module: Any) -> Callable[..., Any]:
    """Return what stands for the client's ``get_dataset``: random prompts, made our way."""
    dataset = module.get_dataset

    def get_dataset(args: Any, tokenizer: Any, model_id: Any = None) -> Any:
        if args.dataset_name != "random-ids":
            return dataset(args, tokenizer, model_id)
        ids = ordinary_ids(args.tokenizer)
        chance = random.Random(args.seed)
        first = ids * math.ceil(args.num_prompts / len(ids))
        chance.shuffle(first)
        return [
            module.DatasetRow(
                prompt=[head, *chance.choices(ids, k=args.random_input_len - 1)],
                prompt_len=args.random_input_len,
                output_len=args.random_output_len,
            )
            for head in first[: args.num_prompts]
        ]

    return get_dataset


def ordinary_ids(folder: str) -> list[int]:
    """Return token ids that stand for text, in ascending order, from a checkpoint's files.

    Without a ``tokenizer.json`` they are the middle half of the vocabulary: special tokens lie at
    its ends.
    """
    tokenizer = Path(folder, "tokenizer.json")
    if not tokenizer.exists():
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        size = (config.get("text_config") or config)["vocab_size"]
        return list(range(size // 4, size - size // 4))
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return sorted(set(ids) - {added["id"] for added in content.get("added_tokens", [])})


def _own_arguments(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return our arguments and the others."""
    own, others = {}, list(argv)
    for name in (TIMEOUT, API_KEY):
        if name in others:
            place = others.index(name)
            own[name] = others[place + 1]
            del others[place : place + 2]
    return own, others


def _main(module: Any) -> Any:
    """Return the code that ``python -m`` would run: the body of ``if __name__ == "__main__"``.

    It is taken from the source because 0.5.13.post1 parses its arguments there, not in a function.
    """
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return compile(ast.Module(node.body, []), module.__file__, "exec")
    raise RuntimeError(f"{module.__name__} can't be run: it has no __main__ part")
