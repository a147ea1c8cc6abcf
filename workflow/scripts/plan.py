"""Stage plan: the whole command line with a reason for every flag, or the reason why not."""

from bringup import artifact, plan
from bringup.joblog import logged


def main(snakemake):
    entry, screened = snakemake.params.entry, snakemake.params.screened
    if screened:
        document = plan.screened(entry, screened)
    else:
        document = plan.plan(
            entry,
            format=artifact.read(snakemake.input.format),
            reading=artifact.read(snakemake.input.reading),
            engine=artifact.read(snakemake.input.engine),
            hardware=artifact.read(snakemake.input.hardware),
            draft=draft_of(snakemake.input),
        )
    artifact.write(snakemake.output[0], document)


def draft_of(files):
    """Return what the draft checkpoint is and how the engine reads it, if there is one."""
    if not files.draft_format:
        return None
    return plan.Draft(artifact.read(files.draft_format), artifact.read(files.draft_reading))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
