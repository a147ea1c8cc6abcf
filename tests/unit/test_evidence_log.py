"""Reading a server's log: every shape of line, every kind of damage."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from bringup.evidence.log import LONGEST_LINE, decode_lines, lines, prefill_lines, traffic

STAMP = "[2026-06-17 20:48:01{}] "


def write(folder: Path, *messages: str, ranks: str = "", end: str = "\n") -> Path:
    log = folder / "server.log"
    text = "\n".join(STAMP.format(ranks) + message for message in messages) + end
    log.write_bytes(text.encode())
    return log


DECODE_SHAPES = {
    "0.5.16": (
        "Decode batch, #running-req: 7, #token: 30, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 1.34, #queue-req: 0",
        (7, 30, 0, 1.34, True, None),
    ),
    "0.5.23 on a CPU": (
        "Decode batch, #running-req: 8, #token: 2071, token usage: 0.25, cpu graph: False, "
        "gen throughput (token/s): 460.81, #queue-req: 3",
        (8, 2071, 3, 460.81, False, None),
    ),
    "hybrid sliding window": (
        "Decode batch, #running-req: 16, #full token: 4242, full token usage: 0.10, "
        "#swa token: 99, swa token usage: 0.02, cuda graph: True, "
        "gen throughput (token/s): 28.05, #queue-req: 1",
        (16, 4242, 1, 28.05, True, None),
    ),
    "speculative": (
        "Decode batch, #running-req: 2, #token: 900, token usage: 0.01, accept len: 2.75, "
        "accept rate: 0.55, cuda graph: True, gen throughput (token/s): 310.00, #queue-req: 0",
        (2, 900, 0, 310.0, True, 2.75),
    ),
    "iteration number and trailing fields": (
        "Decode batch [1234], #running-req: 1, #token: 12, token usage: 0.00, npu graph: True, "
        "gen throughput (token/s): 99.90, #queue-req: 0, est. decode TFLOPS/s (per GPU): 3.10",
        (1, 12, 0, 99.9, True, None),
    ),
    "without a word on graphs": (
        "Decode batch, #running-req: 1, #token: 12, token usage: 0.00, "
        "gen throughput (token/s): 9.00, #queue-req: 0",
        (1, 12, 0, 9.0, None, None),
    ),
}


@pytest.mark.parametrize(("message", "expected"), DECODE_SHAPES.values(), ids=DECODE_SHAPES)
def test_decode_lines_of_every_shape(tmp_path: Path, message: str, expected: tuple) -> None:
    (line,) = decode_lines(write(tmp_path, message))
    found = (
        line.running,
        line.tokens,
        line.queue,
        line.gen_tok_s,
        line.graph,
        line.accept_len,
    )
    assert found == expected
    assert line.time == "2026-06-17 20:48:01"


def test_a_line_cut_in_the_middle_of_its_number_is_left_out(tmp_path: Path) -> None:
    whole, _ = DECODE_SHAPES["0.5.16"]
    log = write(tmp_path, whole, whole[: whole.index("1.34") + 2], end="")
    assert len(decode_lines(log)) == 1


def test_only_the_window_between_two_offsets_is_read(tmp_path: Path) -> None:
    early, late = DECODE_SHAPES["0.5.16"][0], DECODE_SHAPES["0.5.23 on a CPU"][0]
    log = write(tmp_path, early, late, early)
    start = log.read_bytes().index(b"\n") + 1
    end = log.read_bytes().index(b"\n", start) + 1
    assert [line.gen_tok_s for line in decode_lines(log, start, end)] == [460.81]


def test_one_rank_speaks_for_those_that_share_a_batch_and_every_data_parallel_rank_for_itself(
    tmp_path: Path,
) -> None:
    message, _ = DECODE_SHAPES["0.5.16"]
    log = tmp_path / "server.log"
    ranks = [" DP0 TP0", " DP0 TP1", " DP1 TP2", " DP1 TP3"]
    log.write_text("".join(STAMP.format(rank) + message + "\n" for rank in ranks))
    assert [line.ranks for line in decode_lines(log)] == ["DP0 TP0", "DP1 TP2"]


def test_prefill_lines_give_the_tokens_taken_from_the_cache(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        "Prefill batch, #new-seq: 7, #new-token: 115, #cached-token: 46, token usage: 0.00, "
        "#running-req: 1, #queue-req: 2, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 17781.09",
        "Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, full token usage: 0.00, "
        "swa token usage: 0.00, #running-req: 0, #queue-req: 0",
    )
    first, second = prefill_lines(log)
    assert (first.sequences, first.new_tokens, first.cached_tokens) == (7, 115, 46)
    assert (first.queue, first.input_tok_s) == (2, 17781.09)
    assert (second.new_tokens, second.input_tok_s) == (5, None)


def decode(speed: float, *, graph: bool = True, running: int = 8) -> str:
    return (
        f"Decode batch, #running-req: {running}, #token: 1, token usage: 0.00, "
        f"cuda graph: {graph}, gen throughput (token/s): {speed:.2f}, #queue-req: 0"
    )


def test_traffic_leaves_out_the_first_line_because_it_counts_idle_time(tmp_path: Path) -> None:
    seen = traffic(write(tmp_path, decode(3), decode(100), decode(110), decode(120)))
    assert seen["decode_tok_s"] == 110
    assert seen["decode_lines"] == 4
    assert seen["graph"] == "all"


def test_traffic_adds_data_parallel_ranks_up(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "".join(
            f"{STAMP.format(rank)}{decode(speed)}\n"
            for rank, speed in [(" DP0", 1), (" DP1", 1), (" DP0", 50), (" DP1", 70)]
        )
    )
    assert traffic(log)["decode_tok_s"] == 120


def test_traffic_says_when_decode_left_its_graphs(tmp_path: Path) -> None:
    log = write(tmp_path, decode(9), decode(9, graph=False, running=64))
    assert traffic(log)["graph"] == "some"
    assert traffic(log)["running_max"] == 64


def test_traffic_of_a_quiet_window_has_no_figures(tmp_path: Path) -> None:
    assert traffic(write(tmp_path, "nothing")) == {
        "decode_lines": 0,
        "decode_tok_s": None,
        "running_max": None,
        "queue_max": None,
        "graph": "unknown",
        "accept_len": None,
        "prompt_tokens": 0,
        "cached_tokens": 0,
    }


def test_a_message_behind_a_progress_bar_is_a_line_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"  0%|     | 0/6 [00:00<?]{STAMP.format('')}Using default\rnext\n")
    assert [line.text for line in lines(log)] == [
        "  0%|     | 0/6 [00:00<?]",
        "Using default",
        "next",
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_other_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "server.log"
    message, _ = DECODE_SHAPES["0.5.16"]
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    log.write_bytes((mark + STAMP.format(" TP0") + message + "\r\n").encode(encoding))
    (line,) = decode_lines(log)
    assert (line.ranks, line.running) == ("TP0", 7)


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    message, _ = DECODE_SHAPES["0.5.16"]
    log.write_bytes(
        b"\xff\xfe\x00"[2:] + b"\x80\x81 caf\xe9\n" + (STAMP.format("") + message).encode() + b"\n"
    )
    assert len(decode_lines(log)) == 1


def test_a_line_without_an_end_is_cut_and_takes_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    message, _ = DECODE_SHAPES["0.5.16"]
    with log.open("wb") as stream:
        for _ in range(32):
            stream.write(b"x" * (1 << 20))
        stream.write(b"\n" + (STAMP.format("") + message + "\n").encode())
    tracemalloc.start()
    sizes = [len(line.text) for line in lines(log)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes[0] == LONGEST_LINE
    assert len(sizes) == 2
    assert peak < 16 << 20


def test_a_line_break_between_two_blocks_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.evidence.log.BLOCK", 4)
    log = tmp_path / "server.log"
    log.write_bytes(b"abc\r\ndef\rghi\n")
    assert [line.text for line in lines(log)] == ["abc", "def", "ghi"]
