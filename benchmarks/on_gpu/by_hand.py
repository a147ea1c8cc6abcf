"""One experiment's load, probe and sweep without the workflow: the same server, requests, client.

    python benchmarks/on_gpu/by_hand.py RESULTS EXPERIMENT OUT.json [--gpu UUID]

The server is started by its serve.sh.  What the workflow adds (Snakemake, a process for each job,
leases, locks) is what its own time is longer by.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import yaml

from bringup import artifact, command, config, probes, session
from bringup.config import SUITES
from bringup.endpoint import Endpoint, NoReplyError
from bringup.load import point
from bringup.load.workload import Workload
from bringup.serving import identity
from bringup.serving.startup import FIRST_QUESTION

POLL_S = 0.1


def ready(endpoint: Endpoint, server: subprocess.Popen[bytes]) -> None:
    """Wait for a server's first answer.

    Raises:
        SystemExit: it ended.
    """
    while server.poll() is None:
        try:
            if endpoint.get("/health", timeout_s=20).status == 200:
                endpoint.post("/generate", FIRST_QUESTION, timeout_s=120)
                return
        except NoReplyError:
            time.sleep(POLL_S)
    raise SystemExit("the server ended")


def main() -> None:
    """Do by hand what the workflow does, and write the seconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("experiment")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", help="its UUID")
    parser.add_argument("--config", type=Path, default=Path("config/experiments.yaml"))
    given = parser.parse_args()
    folder = given.results / "experiments" / given.experiment
    plan, weights = (artifact.read(folder / f"{name}.json") for name in ("plan", "weights"))
    build = artifact.read(given.results / "engines" / plan["engine"] / "engine.json")
    checkpoints = yaml.safe_load(given.config.read_text())["checkpoints"].values()
    made = [each["path"] for each in checkpoints if "path" in each]  # needn't all be there
    whole = config.load(given.config, backends=lambda _: [], made=made)
    sweep = whole.experiments[given.experiment]["sweep"]
    by_hand = folder.parent / f"{given.experiment}.by-hand"
    by_hand.mkdir(exist_ok=True)
    script = by_hand / "serve.sh"
    artifact.write_text(script, command.script(plan, weights["snapshot"], by_hand))
    port = identity.free_port()
    environment = {**os.environ, "PORT": str(port)}
    if given.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = given.gpu
    questions = probes.load(["arithmetic"], SUITES)
    log = by_hand / "server.log"

    client = session.client("direct", build, log=by_hand / "client.log")
    times, repeats_s = [time.monotonic()], []
    with log.open("wb") as output:
        server = subprocess.Popen(
            ["bash", str(script)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        endpoint = Endpoint(f"http://{identity.HOST}:{port}")
        ready(endpoint, server)
        times.append(time.monotonic())
        probes.ask(endpoint.url, questions)
        times.append(time.monotonic())
        for level in sweep["concurrency"]:
            with tempfile.TemporaryDirectory() as scratch:
                measured = point.measure(
                    given.experiment,
                    point.Target(
                        boot="by-hand",
                        url=endpoint.url,
                        model=str(Path(weights["snapshot"]).absolute()),
                        log=log,
                        gpus=[given.gpu] if given.gpu else [],
                    ),
                    Workload(
                        concurrency=level,
                        input_tokens=sweep["input_tokens"],
                        output_tokens=sweep["output_tokens"],
                        min_seconds=sweep["min_seconds"],
                    ),
                    point.Gate(questions),
                    repeats=sweep["repeats"],
                    client=client,
                    folder=Path(scratch),
                )
            times.append(time.monotonic())
            repeats_s.append(round(sum(r["duration_s"] for r in measured["repeats"]), 2))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    load, probe, *levels = (round(b - a, 2) for a, b in pairwise(times))
    told = {
        "load_s": load,
        "probe_s": probe,
        "points_s": dict(zip(map(str, sweep["concurrency"]), levels, strict=True)),
        "repeats_s": dict(zip(map(str, sweep["concurrency"]), repeats_s, strict=True)),
        "wall_s": round(times[-1] - times[0], 2),
    }
    given.out.write_text(json.dumps(told) + "\n")
    print(given.out.read_text())


if __name__ == "__main__":
    main()
