"""Stage point: measure one experiment at one concurrency level, behind a gate of its own."""

from pathlib import Path

from bringup import artifact, made, paths, probes, session
from bringup.joblog import logged
from bringup.load import point, prompts
from bringup.load.workload import Workload
from bringup.plan import depends_on_text


def main(snakemake, log):
    output = Path(snakemake.output[0])
    asked, sweep = snakemake.params.probes, snakemake.params.sweep
    number = int(getattr(snakemake.wildcards, "boot", 1))
    who = {
        "experiment": snakemake.wildcards.experiment,
        "concurrency": int(snakemake.wildcards.concurrency),
    }
    plan, weights, build, probe = artifact.read_each(
        snakemake.input, "plan", "weights", "engine", "probe"
    )
    cause = artifact.stopping(plan, weights, probe) or unwanted(probe, asked["when_wrong"])
    started = made.now()

    def measure(boot):
        return point.measure(
            who["experiment"],
            point.Target(
                boot=boot.id,
                url=boot.url,
                model=str(paths.actual(weights["snapshot"])),
                log=boot.log,
                api_key=boot.endpoint.api_key,
                gpus=boot.gpus,
                number=number,
                pid=boot.pid,
                depends_on_text=depends_on_text(plan),
            ),
            Workload(
                concurrency=who["concurrency"],
                input_tokens=sweep["input_tokens"],
                output_tokens=sweep["output_tokens"],
                min_seconds=sweep["min_seconds"],
                rate=sweep["rate"],
                prompts=prompts.load(sweep["prompts"]),
            ),
            point.Gate(
                probes.load(asked["suites"], Path(snakemake.input.suites[0]).parent),
                probes.Thresholds(asked["pass_share"], asked["degraded_share"]),
                timeout_s=asked["timeout_s"],
                template={**probes.NO_THINKING, **asked["chat_template_kwargs"]},
                measure_wrong=asked["when_wrong"] == "run",
            ),
            repeats=sweep["repeats"],
            client=session.client(sweep["client"], build, log=log.with_suffix(".client.log")),
            folder=log.parent,
        )

    document = session.served(
        point.SCHEMA,
        measure,
        plan,
        weights,
        build,
        cause=cause,
        folder=output.parents[1],
        boot=number,
        **who,
    )
    if not cause:
        document["made"] = made.since(started)
    artifact.write(output, document)


def unwanted(probe, when_wrong):
    """Return the probe as the cause to skip a sweep after wrong answers, where that is wanted."""
    return probe if probe["status"] == "wrong" and when_wrong == "skip" else None


if __name__ == "__main__":
    with logged(snakemake.log[0]) as log:
        main(snakemake, log)
