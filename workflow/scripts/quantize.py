"""Stage quantize: the quantized forms of the small arithmetic checkpoint, in an engine's torch."""

from bringup import artifact
from bringup.joblog import logged, run
from bringup.paths import actual


def main(snakemake):
    python = actual(artifact.read(snakemake.input.engine)["python"])
    folder, forms = snakemake.params.folder, snakemake.params.forms
    run([python, snakemake.input.make[0], f"{folder}/bf16", folder, "--forms", *forms])


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
