"""Stage plans: what a full run would cost."""

from bringup import artifact, plan
from bringup.joblog import logged


def main(snakemake):
    plans = [artifact.read(path) for path in snakemake.input.plans]
    artifact.write_text(snakemake.output[0], plan.cost(plans))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
