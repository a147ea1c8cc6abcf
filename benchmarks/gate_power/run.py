"""What the gate catches: serve damaged models on the real server and ask.

    python benchmarks/gate_power/run.py --minutes 5 [--clean 300] [--state DIR]

Each call starts one server, does what is left for so many minutes, and writes
docs/gate-power.json and .md from all that was done so far; call it again until it says that
nothing is left.  Damaged weights are put into the running server (POST /update_weights_from_disk,
which empties the prefix cache); faults that no weights can show come from faults.patch.

In the order of work: the clean model's answers to held-out questions; then every damaged model by
turns with runs of the clean one, each a whole gate: the suites' questions at one concurrency, some
of them again in a full batch, and the predictions on fixed texts against the clean ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import engine, made, paths, probes, reference, serving
from bringup.endpoint import Endpoint
from bringup.resident import Home

sys.path.insert(0, str(paths.PROJECT / "benchmarks/gate_power"))
sys.path.insert(0, str(paths.PROJECT / "resources/arithmetic-moe/make"))

import page
from facts import facts
from facts import prompt as rendered
from lessons import LENGTHS, lesson

HERE = Path(__file__).resolve().parent
CHECKPOINT = paths.PROJECT / "resources" / "arithmetic-moe"
SUITES = ("arithmetic", "repeated", "short")
SHORT_PROBE = 12
CONCURRENCY = (4, 8, 16)
"""How many questions at a time, by turns, also in the full batch."""
HELD_OUT_FACTS, HELD_OUT_LESSONS = 200, 4
TEXT_FACTS, TEXT_LESSONS = 24, 1
TIMEOUT_S = 60.0
VERSION = "0.5.23"
SERVER = (
    *("-m", "sglang.launch_server", "--model-path", "{model}"),
    *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"),
    *("--max-total-tokens", "16384", "--max-running-requests", "16"),
    *("--mem-fraction-static", "0.3"),
)

Json = dict[str, Any]

ENGINE_FAULTS = (
    ("rope off", "all layers", "rope-off"),
    ("KV cache in too few bits", "5 bits", "kv-bits 5"),
    ("KV cache in too few bits", "4 bits", "kv-bits 4"),
    ("KV cache in too few bits", "3 bits", "kv-bits 3"),
    ("KV cache in too few bits", "2 bits", "kv-bits 2"),
    ("wrong from batch 4 on", "5 % of a neighbour", "batch-of-4 0.05"),
    ("wrong from batch 4 on", "20 % of a neighbour", "batch-of-4 0.2"),
    ("wrong from batch 4 on", "half of a neighbour", "batch-of-4 0.5"),
)
"""Kind, strength, and what faults.patch is told."""


@dataclass(frozen=True)
class Work:
    """Where things are kept between calls: results line by line, damaged weights, baselines."""

    folder: Path

    @property
    def fault(self) -> Path:
        return self.folder / "fault"

    def results(self) -> list[Json]:
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, result: Json) -> None:
        with (self.folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")

    def damaged(self, python: str, bf16: Path) -> list[Json]:
        """Return the cases of ``corrupt.py``, made once."""
        made_cases = self.folder / "cases.jsonl"
        if not made_cases.exists():
            command = [python, str(HERE / "corrupt.py"), str(bf16), str(self.folder / "weights")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            made_cases.write_text(done.stdout)
        return [json.loads(line) for line in made_cases.read_text().splitlines()]


def held_out() -> list[probes.Question]:
    """Return questions that are no suite's: how many answers change is the true damage.

    Answers are bounded as tightly as the clean model's allow: a damaged one may never stop.
    """
    chance = random.Random("held out")
    asked = [(fact.question, 16) for fact in chance.sample(list(facts()), HELD_OUT_FACTS)]
    for kind in LENGTHS:
        for _ in range(HELD_OUT_LESSONS):
            asked.append((lesson(chance, kind, LENGTHS[kind][0]).turns[0][0], 128))
    return [
        probes.Question(str(number), "held-out", prompt, "?", "exact", most)
        for number, (prompt, most) in enumerate(asked)
    ]


def texts(seed: str, facts_: int, lessons: int) -> list[str]:
    """Return conversations, questions with their right answers, to be read by both models."""
    chance = random.Random(seed)
    found = [rendered(fact.question) + fact.answer for fact in chance.sample(list(facts()), facts_)]
    for kind in LENGTHS:
        for _ in range(lessons):
            turns = lesson(chance, kind, LENGTHS[kind][0]).turns
            found.append(rendered(turns[0][0]) + turns[0][1])
    return found


READ_BY_THE_GATE = texts("gate", TEXT_FACTS, TEXT_LESSONS)
READ_FOR_DAMAGE = texts("damage", 60, 2)


class Bench:
    """One server, and what is asked of it."""

    def __init__(self, endpoint: Endpoint, work: Work, bf16: Path) -> None:
        self._endpoint, self._work, self._bf16 = endpoint, work, bf16
        self._url = endpoint.url
        self._questions = probes.load(SUITES, paths.PROJECT / "resources" / "probes")
        self._asked = held_out()
        self.restore()
        self._clean_answers = self._answers()
        self._clean_damage = reference.read(self._url, READ_FOR_DAMAGE, timeout_s=TIMEOUT_S)
        self._clean_texts = reference.read(self._url, READ_BY_THE_GATE, timeout_s=TIMEOUT_S)
        noise = [
            reference.compare(
                self._clean_texts,
                reference.read(
                    self._url, READ_BY_THE_GATE, concurrency=concurrency, timeout_s=TIMEOUT_S
                ),
            )
            for concurrency in (1, 4, 16)
        ]
        self._bound = reference.Bound.of_noise(noise)

    def load(self, weights: Path) -> None:
        reply = self._endpoint.post(
            "/update_weights_from_disk", {"model_path": str(weights)}, timeout_s=TIMEOUT_S
        )
        if not (reply.status == 200 and reply.json["success"]):
            raise OSError(f"the weights of {weights} were not loaded: {reply.text[:300]}")

    def restore(self) -> None:
        self._work.fault.write_text("")
        self.load(self._bf16)

    def gate(self, concurrency: int) -> Json:
        """Run one whole gate; return its verdict, and which of its parts objected."""
        began = time.monotonic()
        alone = probes.ask(self._url, self._questions, concurrency=concurrency, timeout_s=TIMEOUT_S)
        phases = {"alone": alone}
        if probes.gate(alone, probes.Thresholds()).gate == "pass":  # else the verdict stands
            phases["during"] = probes.ask_within_batch(
                self._url,
                probes.short(self._questions, SHORT_PROBE),
                concurrency=concurrency,
                timeout_s=TIMEOUT_S,
            )
        verdict = probes.across(phases, probes.Thresholds())
        beyond = self._beyond_noise(concurrency)
        return {
            "concurrency": concurrency,
            "single_question": alone[0].outcome == "right",
            "probes": verdict.gate,
            "not_right": len(verdict.not_right),
            "reference": beyond,
            "seconds": round(time.monotonic() - began, 1),
        }

    def damage(self) -> Json:
        """Return how far the model now served is from the clean one."""
        now = self._answers()
        changed = sum(a != b for a, b in zip(self._clean_answers, now, strict=True))
        found: Json = {"changed_share": round(changed / len(now), 4)}
        try:
            seen = reference.compare(
                self._clean_damage,
                reference.read(self._url, READ_FOR_DAMAGE, concurrency=4, timeout_s=TIMEOUT_S),
            )
            found |= {"kl": round(seen.mean_kl, 6), "top1": round(seen.top1, 4)}
        except reference.NoReadingError as error:
            found |= {"kl": None, "top1": None, "unreadable": str(error)}
        return found

    def _beyond_noise(self, concurrency: int) -> list[str]:
        try:
            read = reference.read(
                self._url, READ_BY_THE_GATE, concurrency=concurrency, timeout_s=TIMEOUT_S
            )
        except reference.NoReadingError as error:
            return [str(error)]
        return self._bound.broken_by(reference.compare(self._clean_texts, read))

    def _answers(self) -> list[str]:
        items = probes.ask(self._url, self._asked, concurrency=16, timeout_s=TIMEOUT_S)
        return [item.got for item in items]


def left(
    work: Work, damaged: list[Json], clean: int
) -> Iterator[tuple[Json, Callable[[Bench], None]]]:
    """Yield what is still to be done: the case, and what makes a server show it."""
    done = [result["case"] for result in work.results()]
    cases: list[tuple[Json, Callable[[Bench], None]]] = []
    for case in damaged:
        if case["case"] not in done:
            weights = work.folder / "weights" / case["case"]
            cases.append((case, lambda bench, weights=weights: bench.load(weights)))  # type: ignore[misc]
    for kind, strength, told in ENGINE_FAULTS:
        name = f"{kind}, {strength}".replace(" ", "-").replace(",", "")
        if name not in done:
            case = {"case": name, "kind": kind, "strength": strength, "placement": 0}
            cases.append((case, lambda bench, told=told: work.fault.write_text(told)))  # type: ignore[misc]
    random.Random(1).shuffle(cases)  # a call that is cut has seen some of every kind
    undone = clean - done.count("clean")
    for case, show in cases:
        yield case, show
        if undone > 0:
            yield {"case": "clean"}, lambda bench: None
            undone -= 1
    for _ in range(undone):
        yield {"case": "clean"}, lambda bench: None


def spec(build: Json, bf16: Path, work: Work) -> serving.ServerSpec:
    plan = {
        "experiment": "gate-power",
        "python": build["python"],
        "argv": list(SERVER),
        "env": {
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "GATE_POWER_FAULT": str(work.fault),
        },
        "pythonpath": build["pythonpath"],
        "gpus": 0,
        "startup_max_s": 600,
    }
    return serving.ServerSpec.of(plan, {"snapshot": str(bf16)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clean", type=int, default=300, help="gate runs of the clean model (300)")
    parser.add_argument("--state", type=Path, help="kept between calls (below the cache)")
    asked = parser.parse_args()
    ends = time.monotonic() + 60 * asked.minutes
    bf16 = CHECKPOINT / "bf16"
    weights = hashlib.sha256((bf16 / "model.safetensors").read_bytes()).hexdigest()
    folder = asked.state or paths.cache() / "gate-power" / weights[:12]
    folder.mkdir(parents=True, exist_ok=True)
    work = Work(folder.absolute())
    os.environ.setdefault("BRINGUP_OWNER", str(os.getpid()))
    build = engine.build(
        {"version": VERSION, "patches": [{"file": str(HERE / "faults.patch")}]},
        engine_name="gate-power",
        cuda=False,
        log=work.folder / "engine.log",
    )
    if build["status"] != "ok":
        sys.exit(f"no engine: {build['reason']}")
    damaged = work.damaged(str(paths.actual(build["python"])), bf16)
    work.fault.write_text("")
    wanted = spec(build, bf16, work)
    todo = list(left(work, damaged, asked.clean))
    finished = not todo
    if todo:
        with serving.lease(wanted, log_dir=work.folder) as boot:
            bench = Bench(boot.endpoint, work, bf16)
            for number, (case, show) in enumerate(todo):
                if time.monotonic() > ends:
                    break
                show(bench)
                result = case | {"boot": boot.id}
                result |= bench.gate(CONCURRENCY[number % len(CONCURRENCY)])
                if case["case"] != "clean":
                    result |= bench.damage()
                    bench.restore()
                work.add(result)
                print(json.dumps(result), flush=True)
            else:
                finished = True
        Home.of(wanted.process).stop()
    document = page.document(
        work.results(),
        weights=weights,
        revision=(made.revision() or {}).get("commit", "unknown"),
        made=made.now(),
    )
    page.write(document, paths.PROJECT / "docs")
    print("nothing is left" if finished else "call again: not everything is done", flush=True)


if __name__ == "__main__":
    main()
