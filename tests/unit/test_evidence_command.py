"""``python -m bringup.evidence``: anybody's server, judged by its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup.evidence.__main__ import main

FIXTURES = Path(__file__).with_name("fixtures") / "evidence"
INT4 = str(FIXTURES / "h200-0.5.16-int4-cutlass")


def test_the_document_of_a_fallback(capsys: pytest.CaptureFixture[str]) -> None:
    info = f"{INT4}.server_info.json"
    assert main([f"{INT4}.log", "--server-info", info, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "ready"
    assert document["failure"] is None
    assert document["kernels"] is None
    experts = document["backends"]["experts"]
    assert (experts["asked"], experts["resolved"]) == ("cutlass", "cutlass")
    assert (experts["used"], experts["verdict"]) == ("marlin", "fell-back")


def test_a_trace_settles_what_the_log_leaves_open(capsys: pytest.CaptureFixture[str]) -> None:
    stem = str(FIXTURES / "h200-0.5.16-nvfp4-marlin")
    assert main([f"{stem}.log", "--trace", f"{stem}.trace.json.gz", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    experts = document["backends"]["experts"]
    assert (experts["used"], experts["verdict"]) == ("marlin", "confirmed")
    assert document["kernels"]["modules"][0]["module"] == "experts"


def test_a_failure_is_told_in_words_and_by_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(FIXTURES / "cpu-0.5.23-fp8.log")]) == 1
    told = capsys.readouterr().out
    assert "outcome: failed" in told
    assert "failure: unsupported" in told
    assert "AMX" in told


def test_a_log_that_just_ends_is_unfinished(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(FIXTURES / "h200-0.5.16-int4-marlin-stuck.log"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["outcome"] == "unfinished"


def test_the_command_line_of_a_newer_server_says_what_was_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stem = str(FIXTURES / "cpu-0.5.23-bf16")
    assert main([f"{stem}.log", "--server-info", f"{stem}.server_info.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["asked"]["max-total-tokens"] == "8192"
    assert document["backends"]["experts"]["asked"] is None
    assert document["backends"]["attention"]["resolved"] == "torch_native"


def test_a_folder_stands_for_the_traces_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = (FIXTURES / "h200-0.5.16-int4-marlin.trace.json.gz").read_bytes()
    for rank in range(2):
        (tmp_path / f"TP-{rank}.trace.json.gz").write_bytes(packed)
    assert main([f"{INT4}.log", "--trace", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"]["traces"] == 2


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "server_info.json"
    broken.write_text("{not json")
    for argv in (
        [str(tmp_path / "none.log")],
        [f"{INT4}.log", "--server-info", str(broken)],
        [f"{INT4}.log", "--server-info", str(tmp_path / "none.json")],
        [f"{INT4}.log", "--trace", str(tmp_path / "none.json")],
        [str(tmp_path)],
    ):
        assert main(argv) == 2, argv
        shown = capsys.readouterr()
        assert shown.out == ""
        assert len(shown.err.splitlines()) == 1, shown.err


def test_an_empty_folder_of_traces_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{INT4}.log", "--trace", str(tmp_path)]) == 2
    assert "no trace in it" in capsys.readouterr().err
