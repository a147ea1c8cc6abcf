"""What is recorded of SGLang's load client, on one of its shape."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.load import client, definitions, records
from bringup.load.clients import arguments
from bringup.load.workload import Job, Workload

FIXTURE = Path(__file__).parent / "fixtures" / "bench_serving.py"
WORKLOAD = Workload(concurrency=2, input_tokens=8, output_tokens=50, min_seconds=0)


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SGLang of which only the load client is there; returns a checkpoint's folder."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.5.13.post1"\n')
    shutil.copy(FIXTURE, package / "bench_serving.py")
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    tokenizer = {
        "model": {"vocab": {chr(65 + n): n for n in range(40)}},
        "added_tokens": [{"id": 0, "special": True}, {"id": 39, "special": True}],
    }
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    yield checkpoint  # type: ignore[misc]
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


def run(checkpoint: Path, requests: int = 4, **settings: Any) -> records.Run:
    output = checkpoint / "records.json"
    job = Job(WORKLOAD, "http://127.0.0.1:1", str(checkpoint), requests, seed=7, **settings)
    client.run(arguments(job, str(checkpoint / "summary.json")), str(output))
    return records.read(output)


def behave(monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    """Make every request of the client behave so."""
    monkeypatch.setenv("BEHAVIOUR", behaviour)


def test_each_request_leaves_a_record(sglang: Path) -> None:
    seen = run(sglang)
    assert len(seen.records) == 4
    assert seen.client.version == "0.5.13.post1"
    for record in seen.records:
        assert record.error is None
        assert (record.input_tokens, record.output_tokens, record.first_chunk_tokens) == (8, 50, 1)
        assert record.ttft_s == pytest.approx(0.2)
        assert record.tpot_s == pytest.approx(0.01)
    assert seen.records[0].sent_s == pytest.approx(0, abs=0.05)
    assert seen.start_s > 0
    assert seen.client.ttft_late_ms is not None
    assert seen.clock_step_s == pytest.approx(0, abs=0.05)


def test_errors_inside_http_200_are_errors(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "error in 200")
    seen = run(sglang)
    assert {record.error for record in seen.records} == {"HTTP 200 and not one token"}
    figures = definitions.figures(seen.records, 2)
    assert (figures["completed"], figures["output_tokens"]) == (0, 0)


def test_an_early_stop_counts_what_came(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "stops early")
    assert [record.output_tokens for record in run(sglang).records] == [20] * 4


def test_tokens_of_the_first_chunk_are_known(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "bundled")
    assert {record.first_chunk_tokens for record in run(sglang).records} == {20}


def test_a_request_that_breaks_keeps_what_it_got_and_why(
    sglang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, "breaks")
    first = run(sglang).records[0]
    assert (first.error, first.output_tokens) == ("ServerDisconnected", 5)


def test_a_request_that_hangs_is_given_up(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "hangs")
    monkeypatch.setattr(Workload, "timeout_s", 0.05)
    assert {record.error for record in run(sglang).records} == {"no end after 0.05 s"}


def test_the_key_reaches_the_client_and_nothing_after_it(
    sglang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run(sglang, api_key="k-123")
    assert json.loads((sglang / "summary.json").read_text())["key"] == "k-123"
    run(sglang)
    assert json.loads((sglang / "summary.json").read_text())["key"] is None


def test_arguments_that_the_client_refuses_are_an_error(sglang: Path) -> None:
    with pytest.raises(RuntimeError, match="the load client sent nothing"):
        client.run(["--no-such-argument"], str(sglang / "records.json"))


def test_prompts_share_no_first_token_and_hold_no_special_one(sglang: Path) -> None:
    module = client.warm()
    args = type("Args", (), {
        "dataset_name": "random-ids", "tokenizer": str(sglang), "seed": 1,
        "num_prompts": 38, "random_input_len": 8, "random_output_len": 4,
    })  # fmt: skip
    rows = client._distinct_prompts(module)(args, None)
    assert sorted(row.prompt[0] for row in rows) == list(range(1, 39))
    assert all(len(row.prompt) == row.prompt_len == 8 for row in rows)
    assert not {token for row in rows for token in row.prompt} & {0, 39}
    again = client._distinct_prompts(module)(args, None)
    assert [row.prompt for row in again] == [row.prompt for row in rows]


def test_without_a_tokenizer_file_the_middle_of_the_vocabulary_is_used(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 100}}')
    assert client.ordinary_ids(str(tmp_path)) == list(range(25, 75))
