"""The gate, and a point behind it, on a real server whose model is damaged while it runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bringup import artifact, paths, probes, reference
from bringup.load import clients, point, prompts
from bringup.load.workload import Workload
from bringup.resident import Home
from bringup.serving import Boot, ServerSpec, devices, lease

pytestmark = pytest.mark.real

POWER = paths.PROJECT / "benchmarks" / "gate_power"
BF16 = paths.PROJECT / "resources" / "arithmetic-moe" / "bf16"
QUESTIONS = probes.load(["arithmetic", "short"], paths.PROJECT / "resources" / "probes")
DAMAGED = (
    "nibbles-swapped-one-layer-0",
    "scale-wrong-by-2-all-layers-0",
    "global-scale-dropped-one-expert-0",
    "E8M0-read-as-E4M3-one-layer-0",
    "attention-head-zeroed-all-layers-0",
)
TEXTS = [
    f"<|im_start|>user\nWhat is {a}{sign}{b}? Answer with the number only.<|im_end|>\n"
    f"<|im_start|>assistant\n{answer}"
    for a, sign, b, answer in ((48, "*", 76, 3648), (51, "+", 33, 84), (12, "-", 90, -78))
]


@dataclass(frozen=True)
class Served:
    """A running server, the file that tells it to be faulty, and folders of damaged weights."""

    boot: Boot
    fault: Path
    damaged: Path

    def load(self, weights: Path) -> None:
        reply = self.boot.endpoint.post(
            "/update_weights_from_disk", {"model_path": str(weights)}, timeout_s=60
        )
        assert reply.json["success"], reply.text

    def gate(self, concurrency: int = 8) -> probes.Verdict:
        items = probes.ask(self.boot.url, QUESTIONS, concurrency=concurrency, timeout_s=60)
        return probes.gate(items, probes.Thresholds())

    def reading(self, concurrency: int = 1) -> reference.Reading:
        return reference.read(self.boot.url, TEXTS, concurrency=concurrency, timeout_s=60)


@pytest.fixture(scope="module")
def served(
    build_engine: Callable[..., artifact.Document], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gate")
    build = build_engine("0.5.23", {"file": str(POWER / "faults.patch")})
    python = str(paths.actual(build["python"]))
    command = [python, str(POWER / "corrupt.py"), str(BF16), str(folder / "damaged"), *DAMAGED]
    subprocess.run(command, check=True, capture_output=True)
    fault = folder / "fault"
    fault.write_text("")
    gpus = min(1, len(devices.look()))
    on_cpu = ("--device", "cpu", "--max-total-tokens", "8192", "--max-running-requests", "16")
    plan = {
        "experiment": "gate",
        "python": build["python"],
        "argv": [
            *("-m", "sglang.launch_server", "--model-path", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}", "--mem-fraction-static", "0.3"),
            "--enable-metrics",
            *(("--disable-cuda-graph",) if gpus else on_cpu),  # a graph would not see the file
        ],
        "env": {
            "GATE_POWER_FAULT": str(fault),
            "OMP_NUM_THREADS": "1",
            **({"SGLANG_USE_CPU_ENGINE": "1"} if build["stand_in"] else {}),
        },
        "pythonpath": build["pythonpath"],
        "gpus": gpus,
        "startup_max_s": 600,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_RUN", str(folder / "run"))
        patch.setenv("BRINGUP_OWNER", str(os.getpid()))
        spec = ServerSpec.of(plan, {"snapshot": str(BF16)})
        with lease(spec, log_dir=folder) as boot:
            yield Served(boot, fault, folder / "damaged")
        Home.of(spec.process).stop()


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    yield
    served.fault.write_text("")
    served.load(BF16)


def test_the_clean_model_passes_alone_and_in_batches(served: Served) -> None:
    verdict = served.gate(concurrency=1)
    assert verdict.gate == "pass", verdict.not_right
    within = probes.ask_within_batch(served.boot.url, probes.short(QUESTIONS, 12), concurrency=8)
    assert probes.gate(within, probes.Thresholds()).gate == "pass", within


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_weights_are_caught(served: Served, case: str) -> None:
    served.load(served.damaged / case)
    assert served.gate().gate != "pass"


def test_what_is_wrong_in_batches_only_is_seen_in_batches_only(served: Served) -> None:
    served.fault.write_text("batch-of-4 0.5")
    assert served.gate(concurrency=1).gate == "pass"
    within = probes.ask_within_batch(served.boot.url, probes.short(QUESTIONS, 12), concurrency=8)
    assert probes.gate(within, probes.Thresholds()).gate != "pass"


def test_predictions_tell_a_damaged_model_from_a_clean_one(served: Served) -> None:
    base = served.reading()
    noise = [reference.compare(base, served.reading(each)) for each in (1, 3)]
    bound = reference.Bound.of_noise(noise)
    assert bound.broken_by(reference.compare(base, served.reading(2))) == []
    served.load(served.damaged / "nibbles-swapped-one-layer-0")
    assert bound.broken_by(reference.compare(base, served.reading()))


def test_chats_at_a_rate_are_a_point_behind_its_gate(served: Served, tmp_path: Path) -> None:
    """An open loop: ten texts at the times of a Poisson process of five a second, never earlier."""
    chats = prompts.load("chat")
    load = Workload(4, input_tokens=0, output_tokens=16, min_seconds=2, rate=5, prompts=chats)
    boot = served.boot
    target = point.Target(boot.id, boot.url, str(BF16), boot.log, gpus=boot.gpus, pid=boot.pid)
    found = point.measure(
        "gate",
        target,
        load,
        point.Gate(QUESTIONS),
        repeats=1,
        client=clients.direct,
        folder=tmp_path,
    )
    assert (found["status"], found["gate"]["verdict"], found["void"]) == ("ok", "pass", [])
    (repeat,) = found["repeats"]
    assert (repeat["requests"], repeat["completed"], repeat["output_tokens"]) == (10, 10, 160)
    assert repeat["input_tokens"] > 10 * 10  # sentences, not words
    assert repeat["counters"]["generation_tokens"] == 160  # by the server's own count
    seen = {each["name"]: each["verdict"] for each in repeat["validators"]}
    assert seen["sent-when-due"] in ("ok", "flag")
    assert seen["counters-agree"] == "ok"
    records = json.loads((tmp_path / "c4.1.records.json").read_text())["records"]
    due = [each["scheduled_s"] for each in records]
    assert due == pytest.approx(load.schedule_s(10, repeat["seed"]), abs=1e-6)
    assert all(each["sent_s"] >= each["scheduled_s"] for each in records)
    waited = sorted(1000 * (each["first_token_s"] - each["scheduled_s"]) for each in records)
    assert waited[4] <= repeat["ttft_ms"]["p50"] <= waited[5]
