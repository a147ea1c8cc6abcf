"""Stage launch: start the server, prove what it is, and write down how to start it again."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bringup import (
    artifact,
    command,
    engine,
    evidence,
    hardware,
    made,
    paths,
    plan,
    probes,
    serving,
    session,
)
from bringup.joblog import logged

FOREIGN = "{} changes results and is set outside the config; it belongs into env:"


def main(snakemake, log):
    experiment, folder = snakemake.wildcards.experiment, Path(snakemake.output.server).parent
    planned, weights = artifact.read_each(snakemake.input, "plan", "weights")
    if cause := artifact.stopping(planned, weights):
        skipped = artifact.skipped(evidence.SCHEMA, cause, experiment=experiment)
        artifact.write_text(snakemake.output.script, command.refusal(skipped["reason"]))
        artifact.write(snakemake.output.server, skipped)
        return
    if snakemake.params.described:
        raise OSError("`hardware:` in the config describes another machine; ask for plans only")
    model, draft = weights["snapshot"], weights.get("draft")
    if reason := too_long(snakemake.params.longest, planned, weights):
        refused = artifact.document(evidence.SCHEMA, "refused", reason, experiment=experiment)
        artifact.write_text(snakemake.output.script, command.refusal(reason))
        artifact.write(snakemake.output.server, refused)
        return
    build = artifact.read(snakemake.input.engine)
    started = made.now()
    engine.restore(build)
    with ThreadPoolExecutor() as aside:  # looked up while the server loads
        machine = aside.submit(hardware.fingerprint)
        found = aside.submit(engine.proof.found, build, log=log.with_suffix(".engine.log"))
        document = launched(experiment, planned, weights, build, machine, found, folder)
    artifact.write_text(
        snakemake.output.script, command.script(planned, model, folder, draft=draft)
    )
    document["live"] |= {"made": made.since(started)}
    artifact.write(snakemake.output.server, document)


def launched(experiment, planned, weights, build, machine, found, folder):
    """Return server.json of a server that was started: what it proved to be, or how it failed."""
    foreign = plan.foreign_environment(os.environ)

    def facts():
        return {
            "experiment": experiment,
            "plan": planned,
            "environment": {**foreign, **planned["env"]},
            "versions": {
                "tree": build["tree"],
                "cuda": build["torch_cuda"],
                "driver": machine.result()["driver"],
                "driver_cuda": machine.result()["cuda"],
            },
            "packages": build["packages"],
        }

    try:
        with session.of(planned, weights, build, folder=folder) as boot:
            document = evidence.server_document(
                **facts(),
                boot=boot.id,
                argv=[paths.portable(word) if word.startswith("/") else word for word in boot.argv],
                gpus=boot.gpus,
                load_s=boot.load_s,
                server_info=boot.server_info,
                model_info=boot.model_info,
                log=boot.log,
                live=hardware.live(boot.gpus),
                imports=engine.proof.running(build, boot.pid, found.result()),
            )
    except serving.ServerFailed as failure:
        return evidence.failed_document(
            **facts(),
            boot=failure.boot,
            argv=command.words(planned, weights["snapshot"], draft=weights.get("draft")),
            gpus=[],
            reason=session.explained(failure),
            log=failure.log,
        )
    if why := engine.proof.refusal(build, document["imports"]):
        document |= {"status": "failed", "reason": why}
    document["warnings"] += [
        {"class": "foreign-environment", "message": FOREIGN.format(name), "line": name}
        for name in sorted(set(foreign) - set(planned["env"]))
    ]
    return document


def too_long(longest, planned, weights):
    """Return why no server is started whose model can't read the experiment's questions."""
    file = paths.actual(weights["snapshot"]) / "config.json"
    config = artifact.read(file) if file.is_file() else {}
    asked = serving.value_of("--context-length", planned["argv"])
    context = int(asked) if asked else probes.context_of(config)
    message = probes.beyond_context(*longest, context)
    return message and artifact.reason("question-too-long", message)


if __name__ == "__main__":
    with logged(snakemake.log[0]) as log:
        main(snakemake, log)
