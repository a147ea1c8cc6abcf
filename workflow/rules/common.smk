# What every rule shares: the checked config, the machine, and the params functions.
# A rule gets its own slice of the config and nothing else, so that an edit elsewhere
# can't rerun it.
import os
import re
import sys
from pathlib import Path

from bringup import hardware, imports, plan, probes, routing
from bringup.config import SUITES, ConfigError, load, suite_file

CONFIG_FILE = Path("config/experiments.yaml")

# The small checkpoint that comes with the project, and the forms of it that rule quantize makes.
ARITHMETIC = "resources/arithmetic-moe"
FORMS = ["fp8", "int4", "mixed", "mxfp4", "nvfp4"]
QUANTIZER = [
    "make/quantize.py",
    "make/formats.py",
    "make/model.py",
    "make/calibration.json",
    "hashes.json",
]

try:
    if strangers := sorted(set(config) - {"study"}):
        raise ConfigError([f"--config {name}: unknown; right: study=NAME" for name in strangers])
    WHOLE = load(
        CONFIG_FILE,
        made=[f"{ARITHMETIC}/{form}" for form in FORMS],
        backends=lambda described: routing.backends(
            hardware.fingerprint(described)["architecture"]
        ),
    )
    CONFIG = WHOLE.only(config["study"]) if "study" in config else WHOLE
    HARDWARE = hardware.fingerprint(CONFIG.hardware)
    for entry in CONFIG.experiments.values():
        probes.load(entry["probes"]["suites"], SUITES)
        probes.Thresholds(entry["probes"]["pass_share"], entry["probes"]["degraded_share"])
except ValueError as error:
    sys.exit(str(error))

# The screen: experiments whose `requires` this machine can't meet. They get a plan that says so,
# and what only they need (metadata, engines, readings) is not even asked for.
SCREENED = {
    name: reason
    for name, entry in CONFIG.experiments.items()
    if (reason := hardware.screen(entry["requires"], HARDWARE))
}
RUNNABLE = [name for name in CONFIG.experiments if name not in SCREENED]

# Jobs hand this to the processes that they leave behind, which end with this one.
os.environ.update(BRINGUP_OWNER=str(os.getpid()))

workflow.global_resources.setdefault("gpu", len(HARDWARE["gpus"]))
workflow.global_resources.setdefault("cpu_server", 1)


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    experiment=one_of(CONFIG.experiments),
    checkpoint=one_of(CONFIG.checkpoints),
    engine=one_of(CONFIG.engines),
    concurrency=r"[1-9]\d*",


def code(stage):
    """The library's modules that a stage's script imports: their content counts, as a param does."""
    return imports.fingerprints(Path(workflow.basedir) / "workflow" / "scripts" / f"{stage}.py")


def experiment_entry(*keys):
    """Params function: these keys of the experiment's entry, as far as it has them."""

    def pick(wildcards):
        entry = CONFIG.experiments[wildcards.experiment]
        return {key: entry[key] for key in keys if key in entry}

    return pick


def of_checkpoint(document):
    """Input function: a document of the experiment's checkpoint; none if it was screened out."""

    def pick(wildcards):
        if wildcards.experiment in SCREENED:
            return []
        return f"results/checkpoints/{CONFIG.experiments[wildcards.experiment]['checkpoint']}/{document}.json"

    return pick


def of_engine(wildcards):
    """Input function: the document of the experiment's engine; none if it was screened out."""
    if wildcards.experiment in SCREENED:
        return []
    return f"results/engines/{CONFIG.experiments[wildcards.experiment]['engine']}/engine.json"


def reading_of(wildcards):
    """Input function: how the experiment's engine reads its checkpoint."""
    if wildcards.experiment in SCREENED:
        return []
    entry = CONFIG.experiments[wildcards.experiment]
    return f"results/readings/{entry['checkpoint']}--{entry['engine']}.json"


def gpus(wildcards):
    """Resource function: the GPUs that a job holds, at most those that there are."""
    needed = plan.gpus_needed(CONFIG.experiments[wildcards.experiment])
    return min(needed, len(HARDWARE["gpus"]))


def cpu_server(wildcards):
    """Resource function: without GPUs, one job at a time uses a server."""
    return 0 if HARDWARE["gpus"] else 1


def points_of(name):
    levels = CONFIG.experiments[name]["sweep"]["concurrency"]
    return [f"results/experiments/{name}/points/c{level}.json" for level in levels]
