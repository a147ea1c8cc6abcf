"""Stage plans: what a full run would cost."""

from pathlib import Path

from bringup import artifact, plan, progress
from bringup.joblog import logged


def main(snakemake):
    params = snakemake.params
    plans = [artifact.read(path) for path in snakemake.input.plans]
    cost = plan.cost(
        plans,
        params.sweeps,
        took=times(),
        here=params.local,
        profiled=params.profiled,
    )
    said = [plan.cost_table(cost), plan.remarks(plans, params.sweeps)]
    artifact.write_text(snakemake.output[0], "\n".join(part for part in said if part))


def times():
    """Return how long jobs took in earlier runs; one that was skipped then tells nothing."""
    known = progress.Times(progress.TIMES).by_output()
    return {output: took for output, took in known.items() if happened(Path(output))}


def happened(output):
    if output.suffix != ".json" or not output.exists():
        return False
    return artifact.read(output).get("status") not in (None, "skipped")


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
