"""Stage engine: build an SGLang, patch it, and prove what was built."""

from bringup import artifact, engine
from bringup.joblog import logged


def main(snakemake, log):
    document = engine.build(
        snakemake.params.entry,
        engine_name=snakemake.wildcards.engine,
        cuda=snakemake.params.cuda,
        log=log,
    )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]) as log:
        main(snakemake, log)
