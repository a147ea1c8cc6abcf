"""Stage weights: the checkpoint's files, whole and verified, for an experiment that may run."""

from bringup import artifact, checkpoint
from bringup.joblog import logged


def main(snakemake):
    plan = artifact.read(snakemake.input.plan)
    if cause := artifact.stopping(plan):
        document = artifact.skipped(checkpoint.WEIGHTS_SCHEMA, cause)
    else:
        draft = snakemake.input.draft
        document = checkpoint.weights(
            artifact.read(snakemake.input.metadata), artifact.read(draft) if draft else None
        )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
