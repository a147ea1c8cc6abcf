"""docs/client-truth.md, from docs/client-truth.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

INTRODUCTION = """\
# Which load client tells the truth

Written by `benchmarks/client_truth/run.py`; do not edit. Load clients against a server that sends
each token at a time fixed beforehand. The truth is what the server did by its own records, in our
definitions; errors are relative to it. *Late* is how late the server itself was at worst: where
that is not small, the machine was the limit and not the client. *Noticed*: what our validators said
of the run. `direct` and `sglang` are what `sweep.client` can be, with figures computed by us; the
others stand for themselves.
"""

WHY = """
Why the default is ours, although SGLang's compiled client is as exact in time: it came after 0.5.13
(sglang 0.5.23 `benchmark/rust_client.py`; the releases that a pull request is applied to may not
have it), it sends random tokens and ShareGPT only, no chat template and no texts of the user's, and
where a first piece brings several tokens its TPOT leaves out their time (below: 6.1 ms for 10). One
client for every build keeps their figures comparable.
"""

FIGURES = ("output_tok_s", "ttft_ms", "tpot_ms")

FAULTS = ("server", "client", "completed", "tok/s (truth)", "TTFT ms", "TPOT ms", "noticed")
CURVE = (
    "C",
    "client",
    "tok/s error",
    "TTFT error",
    "TPOT error",
    "loop late ms",
    "first late ms",
    "core",
    "late ms",
    "noticed",
)


def client_truth(found: Mapping[str, Any]) -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_head(found), *_faults(found), *_curve(found)]) + "\n"


def _head(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"On {found['cores']} cores, in parts (load: the machine's load average before it):\n"
    yield from map(_part, found["measured"])
    yield ""
    yield f"Default client: **{found['default_client']}**. Highest concurrency up to which median"
    yield "TTFT, median TPOT and throughput are within 1 %:\n"
    for client, level in found["max_concurrency_within_1pct"].items():
        yield f"- {client}: {'none' if level is None else level}"
    missed = found["unnoticed"]
    yield "\nOff by more, and noticed by no validator: " + (", ".join(missed) or "none") + "."
    yield WHY


def _part(part: Mapping[str, Any]) -> str:
    what = []
    if part["faults"]:
        what.append(", ".join(part["faults"]))
    if part["curve"]:
        what.append("C = " + ", ".join(map(str, part["curve"])))
    return (
        f"- {part['date']}, revision {part['revision']}, load {part['load_average_before']}: "
        f"{', '.join(part['clients'])}; {'; '.join(what)}"
    )


def _faults(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Servers with a habit or a fault\n"
    yield "C = 4, 16 requests of 50 tokens, 200 ms to the first, 10 ms for each other.\n"
    yield from _table_head(FAULTS)
    for name, clients in found["faults"].items():
        for client, figures in clients.items():
            cells = [_beside(figures, each) for each in FIGURES]
            what = found["scenarios"][name]
            yield _line(what, client, figures["completed"], *cells, _noticed(figures))
    yield ""


def _curve(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Concurrency\n"
    yield "Requests of 100 tokens, 50 a second for each stream.\n"
    yield from _table_head(CURVE)
    for level, clients in found["curve"].items():
        for client, figures in clients.items():
            share = figures.get("cpu_share")
            yield _line(
                level,
                client,
                *(_percent(figures["errors"][each]) for each in FIGURES),
                _number(figures.get("loop_late_ms_p99")),
                _number(figures.get("ttft_late_ms")),
                "–" if share is None else f"{share:.0%}",
                _number(figures["truth"]["late_ms"]),
                _noticed(figures),
            )


def _table_head(names: tuple[str, ...]) -> Iterator[str]:
    yield _line(*names)
    yield _line(*("---" for _ in names))


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _beside(figures: Mapping[str, Any], name: str) -> str:
    return f"{_number(figures[name])} ({_number(figures['truth'][name])})"


def _noticed(figures: Mapping[str, Any]) -> str:
    return ", ".join(figures.get("noticed", [])) or "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2%}"
