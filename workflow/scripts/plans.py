"""Stage plans: what a full run would cost."""

from pathlib import Path

from bringup import artifact, plan
from bringup.joblog import logged


def main(snakemake):
    sweeps = snakemake.params.sweeps
    plans = [artifact.read(path) for path in snakemake.input.plans]
    loads = {name: seconds for name in sweeps if (seconds := load_seconds(name))}
    cost = plan.cost(plans, sweeps, loads_s=loads, here=snakemake.params.local)
    artifact.write_text(snakemake.output[0], plan.cost_table(cost))


def load_seconds(name):
    """Return how long the experiment's server took to load in an earlier run, if there was one."""
    path = Path("results/experiments", name, "server.json")
    return artifact.read(path).get("load_s") if path.exists() else None


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
