"""The server of known speed that load clients are measured against keeps to its own truth."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "client_truth"
sys.path.insert(0, str(BENCHMARK))

from page import client_truth  # noqa: E402
from run import running_server, unnoticed, within  # noqa: E402
from run import served as served_by  # noqa: E402
from server import SCENARIOS, Scenario, chunks  # noqa: E402


def test_the_first_token_comes_alone_and_the_others_in_chunks() -> None:
    """50 tokens, 20 a chunk: the last token of a chunk decides when it is due."""
    planned = chunks(Scenario("", ttft_s=0.2, tpot_s=0.01, chunk=20), 50)
    assert [each.tokens for each in planned] == [1, 21, 41, 50]
    assert [each.due_s for each in planned] == pytest.approx([0.2, 0.4, 0.6, 0.69])


def test_a_bundled_first_chunk_is_late_by_what_it_holds() -> None:
    planned = chunks(SCENARIOS["bundled-first"], 50)
    assert [each.tokens for each in planned] == [20, 40, 50]
    assert planned[0].due_s == pytest.approx(0.2 + 19 * 0.01)


def test_an_early_stop_ends_where_it_says() -> None:
    assert chunks(SCENARIOS["early-stop"], 50)[-1].tokens == 20
    assert chunks(SCENARIOS["early-stop"], 5)[-1].tokens == 5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The server as a process; its port, and the folder of what it did."""
    folder = tmp_path_factory.mktemp("truth")
    with running_server(folder, processes=1) as url:
        yield urlsplit(url).port or 0, folder


def generate(port: int, scenario: str, run: str, tokens: int) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": tokens}}
    connection.request("POST", f"/{scenario}/{run}/generate", json.dumps(body))
    text = connection.getresponse().read().decode()
    connection.close()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(each) for each in events if each != "[DONE]"]


def test_what_it_sends_and_what_it_says_it_sent(served: tuple[int, Path]) -> None:
    port, folder = served
    events = generate(port, "base", "one", 5)
    assert [each["meta_info"]["completion_tokens"] for each in events] == [1, 2, 3, 4, 5]
    assert events[-1]["text"].split() == ["a"] * 5
    (said,), late_s = served_by(folder, "one", requests=1)
    assert (said.input_tokens, said.output_tokens) == (3, 5)
    assert said.ttft_s is not None and said.ttft_s >= 0.2
    assert said.tpot_s == pytest.approx(0.01, abs=late_s)


def test_an_error_inside_http_200(served: tuple[int, Path]) -> None:
    assert generate(served[0], "error-in-200", "two", 5)[0]["error"]["code"] == 500


def test_the_page_shows_every_client_and_level() -> None:
    figures = {
        "completed": 16,
        "output_tok_s": 287.0,
        "ttft_ms": 202.0,
        "tpot_ms": None,
        "noticed": ["void: none-failed"],
        "truth": {"output_tok_s": 290.0, "ttft_ms": 200.0, "tpot_ms": 10.0, "late_ms": 1.5},
        "errors": {"output_tok_s": -0.0103, "ttft_ms": 0.01, "tpot_ms": None},
    }
    found = {
        "cores": 2,
        "measured": [
            {
                "date": "2026-01-01",
                "revision": "abc",
                "load_average_before": 0.1,
                "clients": ["ours", "theirs"],
                "faults": ["base"],
                "curve": [4],
            }
        ],
        "default_client": "ours",
        "max_concurrency_within_1pct": {"ours": 64, "theirs": None},
        "unnoticed": ["ours at C = 256"],
        "scenarios": {"base": "one token a chunk"},
        "faults": {"base": {"ours": figures}},
        "curve": {"4": {"ours": figures}},
    }
    page = client_truth(found)
    beside = "287.0 (290.0) | 202.0 (200.0) | – (10.0) | void: none-failed"
    assert f"| one token a chunk | ours | 16 | {beside} |" in page
    assert "| 4 | ours | -1.03% | +1.00% | – | – | – | – | 1.5 | void: none-failed |" in page
    assert "- theirs: none" in page
    assert "- 2026-01-01, revision abc, load 0.1: ours, theirs; base; C = 4" in page
    assert "noticed by no validator: ours at C = 256." in page


def test_a_level_counts_only_if_all_below_it_do() -> None:
    def off(error: float) -> dict[str, Any]:
        return {"ours": {"errors": {"ttft_ms": error, "tpot_ms": 0.0}, "noticed": []}}

    assert within({"1": off(0.001), "4": off(-0.009), "16": off(0.02), "64": off(0)}, "ours") == 4
    assert within({"1": off(0.02)}, "ours") is within({}, "ours") is None
    curve = {"1": {"direct": off(0.001)["ours"]}, "4": {"direct": off(0.02)["ours"]}}
    assert unnoticed(curve) == ["direct at C = 4"]


def test_the_default_client_is_the_one_that_the_measurement_names() -> None:
    project = BENCHMARK.parents[1]
    found = json.loads((project / "docs/client-truth.json").read_text())
    schema = yaml.safe_load((project / "workflow/schemas/config.schema.yaml").read_text())
    assert schema["$defs"]["sweep"]["properties"]["client"]["default"] == found["default_client"]
    assert found["max_concurrency_within_1pct"][found["default_client"]] >= 64
    assert found["unnoticed"] == []
    assert client_truth(found) == (project / "docs/client-truth.md").read_text()
