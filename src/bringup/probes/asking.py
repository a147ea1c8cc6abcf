"""Ask a server the questions of a suite, alone or beside a load that fills its batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from bringup.endpoint import Endpoint, NoReplyError
from bringup.probes.judging import SHOWN, Judgement, Outcome, Where, judge
from bringup.probes.suites import Question

CHAT = "/v1/chat/completions"

NO_THINKING: Mapping[str, Any] = {"enable_thinking": False, "thinking": False}
"""Chat template variables that switch thinking off: the first in Qwen3 and GLM-4.5 templates, the
second in those of DeepSeek V3.1 and later (SGLang 0.5.23, docs on separate reasoning).  A template
that knows neither ignores both.  For families that only budget their thinking the config says
how (``probes.chat_template_kwargs``)."""

FILLER_TOKENS = 64
"""Tokens of one filler request: long enough to stay in the batch while questions come and go."""


@dataclass(frozen=True)
class Item:
    """One question as asked and answered; the fields of `Judgement` say what it is worth."""

    id: str
    suite: str
    prompt: str
    expected: str
    got: str
    where: Where
    outcome: Outcome
    sign: str | None
    message: str | None
    finish_reason: str | None
    seconds: float


def ask(
    url: str,
    questions: Sequence[Question],
    *,
    concurrency: int = 1,
    timeout_s: float = 120,
    api_key: str | None = None,
    template: Mapping[str, Any] = NO_THINKING,
) -> list[Item]:
    """Ask each question once, ``concurrency`` at a time, greedily; return items in their order.

    ``template`` are variables for the chat template.  Nothing raises for what the server does: no
    answer in ``timeout_s`` is an item, too.
    """
    endpoint = Endpoint(url, api_key)
    with ThreadPoolExecutor(max_workers=concurrency) as threads:
        return list(
            threads.map(lambda each: _ask_one(endpoint, each, timeout_s, template), questions)
        )


def ask_within_batch(
    url: str,
    questions: Sequence[Question],
    *,
    concurrency: int,
    timeout_s: float = 120,
    api_key: str | None = None,
    template: Mapping[str, Any] = NO_THINKING,
) -> list[Item]:
    """Ask the questions while ``concurrency`` requests, they included, run at once.

    One request of four is a question, at least one; the others are fillers that generate without
    stopping.  So answers are read in batches of the size that is measured: kernels are chosen
    by batch size, and some are wrong at one size only.
    """
    asking = max(1, concurrency // 4)
    with _fillers(Endpoint(url, api_key), concurrency - asking, timeout_s):
        return ask(
            url,
            questions,
            concurrency=asking,
            timeout_s=timeout_s,
            api_key=api_key,
            template=template,
        )


@contextmanager
def _fillers(endpoint: Endpoint, count: int, timeout_s: float) -> Iterator[None]:
    """Keep ``count`` requests with different prompts running until the block ends."""
    enough = threading.Event()

    def fill(number: int) -> None:
        turn = 0
        while not enough.is_set():
            prompt = f"Item {number}.{turn}: count from {number * 7 + turn}."
            body = _completion(prompt, NO_THINKING)
            body |= {"max_tokens": FILLER_TOKENS, "ignore_eos": True}
            try:
                endpoint.post(CHAT, body, timeout_s=timeout_s)
            except NoReplyError:
                return  # the questions meet the same server and say what is wrong with it
            turn += 1

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _ask_one(
    endpoint: Endpoint, question: Question, timeout_s: float, template: Mapping[str, Any]
) -> Item:
    body = _completion(question.prompt, template) | {"max_tokens": question.max_tokens}
    start = time.monotonic()
    try:
        reply = endpoint.post(CHAT, body | {"logprobs": True}, timeout_s=timeout_s)
        if reply.status == HTTPStatus.BAD_REQUEST and "logprob" in reply.text:
            reply = endpoint.post(CHAT, body, timeout_s=timeout_s)  # a server without them
        judgement = judge(question, reply)
    except NoReplyError as error:
        judgement = Judgement("error", sign="no-reply", message=str(error))
    return Item(
        id=question.id,
        suite=question.suite,
        prompt=_shown(question.prompt),
        expected=question.answer,
        got=judgement.got,
        where=judgement.where,
        outcome=judgement.outcome,
        sign=judgement.sign,
        message=judgement.message,
        finish_reason=judgement.finish_reason,
        seconds=round(time.monotonic() - start, 3),
    )


def _completion(prompt: str, template: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": "default",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "chat_template_kwargs": dict(template),
    }


def _shown(prompt: str) -> str:
    """Return a prompt that is long without its middle: a question stands at the end."""
    half = SHOWN // 2
    return prompt if len(prompt) <= SHOWN else f"{prompt[:half]} … {prompt[-half:]}"
