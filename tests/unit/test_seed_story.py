"""The worked study in docs/seed-story.md quotes what the report says of the story's own figures."""

from __future__ import annotations

from pathlib import Path

from fixtures.report import study

from bringup import report
from bringup.paths import PROJECT

REQUEST = {"source": {"pr": 25820}, "outcome": "applied", "sha256": "ab" * 32, "files": []}

RUNS = {
    "dsv4-mxfp4": ("mxfp4", "june", "marlin", "torch-native", "fell-back", 22.6),
    "dsv4-nvfp4--marlin": ("nvfp4", "june-pr25820", "marlin", "marlin", "confirmed", 28.0),
    "dsv4-nvfp4--flashinfer_cutlass": (
        "nvfp4",
        "june-pr25820",
        "flashinfer_cutlass",
        "flashinfer_cutlass",
        "confirmed",
        28.0,
    ),
}
"""Checkpoint, engine, backend asked, used, verdict; tokens per second of sixteen requests."""

ROUTED = "flashinfer_trtllm_routed"


def write(folder: Path) -> study.Run:
    """Write runs with the figures of the story: one repeat on one boot each."""
    run = study.Run(folder)
    run.add("hardware.json", study.HARDWARE)
    for engine, patches in (("june", []), ("june-pr25820", [REQUEST])):
        built = {"engine": engine, "base": {"version": "0.5.13.post1"}, "patches": patches}
        run.add(
            f"engines/{engine}/engine.json",
            {**study.head("engine/1"), **built, "version": "0.5.13.post1"},
        )
    for name, (checkpoint, engine, asked, used, verdict, throughput) in RUNS.items():
        experiment(run, name, checkpoint, engine, asked)
        folder_ = f"experiments/{name}"
        run.add(f"{folder_}/weights.json", {**study.head("weights/1"), "files": []})
        run.add(f"{folder_}/server.json", study.server(name, asked, used, verdict, 400.0))
        run.add(f"{folder_}/probe.json", study.probe(name, 25))
        point = study.point(name, 16, (throughput,), 2400.0, 560.0, boots=1)
        run.add(f"{folder_}/points/c16.json", point)
    experiment(run, f"dsv4-nvfp4--{ROUTED}", "nvfp4", "june-pr25820", ROUTED, refused=True)
    return run


def experiment(
    run: study.Run, name: str, checkpoint: str, engine: str, backend: str, refused: bool = False
) -> None:
    more = {"baseline": "dsv4-mxfp4"} if checkpoint == "nvfp4" else {}
    run.experiments.append(study.entry(name, "dsv4-flash", checkpoint, engine, **more))
    plan = study.plan(name, checkpoint, engine, backend, (checkpoint, "fp8-block"))
    if refused:
        why = f"nvfp4 experts on sm120: {backend} has kernels for SM100 only"
        plan |= study.head("plan/1", "refused", study.reason("backend", why))
    run.add(f"experiments/{name}/plan.json", plan)


def test_the_story_quotes_the_report(tmp_path: Path) -> None:
    run = write(tmp_path)
    document = report.document(
        experiments=run.experiments, documents=run.documents, output=tmp_path
    )
    (told,) = document["studies"]
    page = (PROJECT / "docs" / "seed-story.md").read_text(encoding="utf-8")
    quoted = [line.removeprefix("> - ") for line in page.splitlines() if line.startswith("> - ")]
    assert quoted == told["answer"]
