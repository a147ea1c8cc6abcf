"""Benchmarks by a harness: its command line, its results file, and what they are worth."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer

from bringup import accuracy
from documents import checked

RESULTS = {
    "results": {
        "sums": {
            "name": "sums",
            "alias": "sums",
            "sample_len": 20,
            "exact_match,none": 0.75,
            "exact_match_stderr,none": 0.09933992677987828,
        }
    },
    "n-samples": {"sums": {"original": 20, "effective": 20}},
    "lm_eval_version": "0.4.13",
}
"""As lm-eval 0.4.13 wrote it for 15 right answers of 20."""

HARNESS = """#!{python}
import json, os, sys
from pathlib import Path
argv = sys.argv[1:]
Path({seen!r}).write_text(json.dumps({{"argv": argv, "key": os.environ["OPENAI_API_KEY"]}}))
if "fail" in argv[argv.index("--tasks") + 1]:
    sys.exit("no such task")
out = Path(argv[argv.index("--output_path") + 1]) / "default"
out.mkdir(parents=True)
(out / "results_2026.json").write_text({results!r})
"""


@pytest.mark.parametrize(
    ("value", "n", "low", "high"),
    [
        (0.75, 20, 0.5313, 0.8881),  # Wilson's interval for 15 of 20, R: prop.test(correct = FALSE)
        (0.0, 10, 0.0, 0.2775),
        (1.0, 10, 0.7225, 1.0),
    ],
)
def test_intervals_are_wilsons(value: float, n: int, low: float, high: float) -> None:
    assert accuracy.interval(value, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("least", "verdict"), [(0.5, "reached"), (0.75, "unsure"), (0.88, "unsure"), (0.9, "below")]
)
def test_the_interval_decides_not_the_score(least: float, verdict: str) -> None:
    tasks = {"sums": {"metric": "exact_match", "least": least}}
    (score,) = accuracy.scores(RESULTS, tasks)
    assert (score.value, score.n, score.verdict) == (0.75, 20, verdict)
    assert score.stderr == pytest.approx(0.0993, abs=1e-4)


def test_a_metric_that_the_task_lacks_is_named() -> None:
    with pytest.raises(OSError, match=r"tasks.sums: no metric 'f1,none' .* exact_match,none"):
        accuracy.scores(RESULTS, {"sums": {"metric": "f1", "least": 0.5}})


def harness(folder: Path) -> dict[str, Any]:
    """Return settings with something that answers like the harness's interpreter."""
    program = folder / "python"
    seen = folder / "seen.json"
    text = HARNESS.format(python=sys.executable, seen=str(seen), results=json.dumps(RESULTS))
    program.write_text(text)
    program.chmod(0o755)
    tasks = {"sums": {"metric": "exact_match", "least": 0.95}}
    return {"python": str(program), "tasks": tasks, "concurrency": 4, "limit": 20}


def test_a_score_that_is_surely_too_low_is_wrong(tmp_path: Path) -> None:
    settings = harness(tmp_path)
    document = checked(accuracy.measure("x", "b1", "http://h:1", settings, api_key="secret"))
    assert document["status"] == "wrong"
    assert document["reason"]["message"].startswith("sums: 0.750 of 20 (95 %: 0.531 to 0.888)")
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["key"] == "secret"
    assert "secret" not in " ".join(seen["argv"])
    assert "base_url=http://h:1/v1/chat/completions" in seen["argv"][5]
    assert seen["argv"][-2:] == ["--limit", "20"]


def test_a_harness_that_fails_says_nothing_about_the_experiment(tmp_path: Path) -> None:
    settings = harness(tmp_path) | {"tasks": {"fail": {"metric": "exact_match", "least": 0.5}}}
    with pytest.raises(OSError, match="ended with code 1: no such task"):
        accuracy.measure("x", "b1", "http://h:1", settings)


@pytest.mark.skipif(
    "BRINGUP_LM_EVAL" not in os.environ,
    reason="BRINGUP_LM_EVAL names no interpreter that has lm-eval",
)
def test_the_real_harness_on_a_local_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty products of which the server gets fifteen right."""
    rows = [{"question": f"What is {a}*7?", "answer": str(a * 7)} for a in range(11, 31)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(
        f"""\
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "sums.jsonl"}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 16, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
    )

    def script(path: str, body: dict[str, Any]) -> Answer:
        a = int(body["messages"][0]["content"].split()[2].partition("*")[0])
        said = str(a * 7 if a % 4 else a * 7 + 1)
        message = {"role": "assistant", "content": said}
        return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    settings = {
        "python": os.environ["BRINGUP_LM_EVAL"],
        "tasks": {"sums": {"metric": "exact_match", "least": 0.5}},
        "folder": str(tmp_path),
        "concurrency": 4,
    }
    with ScriptedServer(script) as server:
        document = checked(accuracy.measure("x", "b1", server.url, settings))
    (score,) = document["scores"]
    assert (score["value"], score["n"], score["verdict"]) == (0.75, 20, "reached")
