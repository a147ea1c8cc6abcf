"""Predicted memory against what real servers report, for checkpoints without weights.

    python benchmarks/on_gpu/memory.py RESULTS OUT EXPERIMENT… [--gpu UUID…]

RESULTS holds their plans (``load-format: dummy``, no cap on tokens).  Each GPU has one server at a
time: the next one's imports run beside it, but it is held before it looks at the memory until the
GPU is empty.  A server is stopped as soon as its log tells the size of its KV cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

from bringup import artifact, evidence, hardware, serving
from bringup.evidence.observed import number, observe
from bringup.resident import Home, start
from bringup.serving import identity

POLL_S = 0.1
LOOKS = re.compile(r"Init torch distributed begin")
"""The line after which a server looks at how much memory is free (SGLang 0.5.16)."""


class Lane:
    """One GPU: its servers, one after the other."""

    def __init__(self, gpu: str, names: list[str], given: argparse.Namespace) -> None:
        self._gpu, self._names, self._given = gpu, names, given
        self._deadline = time.monotonic() + given.deadline_s
        self.found: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Measure all of them, or as many as the time allows."""
        waiting = [self._start(self._names[0])] if self._names else []
        for place, name in enumerate(self._names):
            home, log, plan = waiting.pop(0)
            _continue(home)
            followers = self._names[place + 1 : place + 2]
            self.found[name] = self._measure(home, log, plan, followers, waiting)

    def _start(self, name: str) -> tuple[Home, Path, artifact.Document]:
        plan = artifact.read(self._given.results / "experiments" / name / "plan.json")
        spec = serving.ServerSpec.of(
            plan, {"snapshot": str(self._given.shapes / plan["checkpoint"])}
        )
        home, log = Home.of(spec.process), self._given.out / f"{name}.log"
        start(
            spec.process,
            log=log,
            idle_s=600.0,
            fill={"port": str(identity.free_port())},
            env={"CUDA_VISIBLE_DEVICES": self._gpu},
        )
        return home, log, plan

    def _measure(
        self,
        home: Home,
        log: Path,
        plan: artifact.Document,
        followers: list[str],
        waiting: list[tuple[Home, Path, artifact.Document]],
    ) -> dict[str, Any]:
        """Wait for the size of a server's KV cache, with the next one's imports beside it."""
        held = False
        while True:
            values = observe(log).values
            done = "kv_tokens" in values and "weights_gib" in values
            ended = not home.is_alive() or time.monotonic() > self._deadline
            if LOOKS.search(log.read_text(errors="replace")) and followers and not waiting:
                waiting.append(self._start(followers[0]))
            if waiting and not held and LOOKS.search(waiting[0][1].read_text(errors="replace")):
                _signal(waiting[0][0], signal.SIGSTOP)
                held = True
            if done or ended:
                break
            time.sleep(POLL_S)
        home.stop()
        if followers and not waiting:
            waiting.append(self._start(followers[0]))
        found = {
            "kv_tokens": number(values.get("kv_tokens")),
            "weights_gib": number(values.get("weights_gib")),
        }
        reason = None if done else evidence.diagnose(log)
        return {"predicted": plan["fit"], "found": found, "values": values, "reason": reason}


def _signal(home: Home, number: int) -> None:
    """Send a signal to all processes of a server that is alive."""
    if home.is_alive():
        for pid in identity.members(home.state().pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _continue(home: Home) -> None:
    _signal(home, signal.SIGCONT)


def main() -> None:
    """Read the arguments, use every GPU, and write OUT/memory.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--shapes", type=Path, default=Path("shapes"))
    parser.add_argument("--gpu", nargs="*", help="UUIDs; all GPUs where left out")
    parser.add_argument("--deadline-s", type=float, default=240.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    gpus = given.gpu or [gpu["uuid"] for gpu in hardware.fingerprint()["gpus"]]
    lanes = [
        Lane(gpu, given.experiments[place :: len(gpus)], given) for place, gpu in enumerate(gpus)
    ]
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {name: each for lane in lanes for name, each in lane.found.items()}
    artifact.write_text(given.out / "memory.json", json.dumps(found, indent=1))
    for name, each in found.items():
        print(name, each["found"], "predicted:", each["predicted"])


if __name__ == "__main__":
    main()
