# What all rules share: the checked config, the machine, the params and input functions.
# Each gets its own slice of the config and nothing else, so that an edit elsewhere
# can't make it run again.
import math
import os
import re
import sys
from pathlib import Path

from bringup import artifact, asked, cluster, hardware, imports, plan, probes, routing
from bringup.config import SUITES, ConfigError, is_recorded, load, suite_file
from bringup.load import clients, prompts

CONFIG_FILE = Path("config/experiments.yaml")

ALL_CORES = 1 << 16  # Snakemake gives a job at most those that there are

# The small checkpoint that comes with the project, and the forms of it that are made of it.
ARITHMETIC = "resources/arithmetic-moe"
FORMS = ["fp8", "int4", "mixed", "mxfp4", "nvfp4"]
QUANTIZER = [
    "make/quantize.py",
    "make/formats.py",
    "make/model.py",
    "make/calibration.json",
    "hashes.json",
]


def planned_for(described):
    """The machine that experiments are planned for: the config's, the cluster's, else this one."""
    if described and NODES:
        raise ConfigError([f"{CONFIG_FILE}: hardware: takes no part on a cluster; remove it"])
    return NODES.hardware() if NODES else hardware.fingerprint(described)


try:
    if strangers := sorted(set(config) - {"study", "nodes"}):
        raise ConfigError([f"--config {name}: unknown; right: study=NAME" for name in strangers])
    NODES = cluster.load(config["nodes"], file="nodes.yaml") if "nodes" in config else None
    WHOLE = load(
        CONFIG_FILE,
        made=[f"{ARITHMETIC}/{form}" for form in FORMS],
        backends=lambda described: routing.backends(planned_for(described)["architecture"]),
    )
    CONFIG = WHOLE.only(config["study"]) if "study" in config else WHOLE
    HARDWARE = planned_for(CONFIG.hardware)
    HOST = hardware.fingerprint() if CONFIG.hardware else HARDWARE  # what engines are built on
    settings = [entry["probes"] for entry in CONFIG.experiments.values()]
    LONGEST = {
        names: probes.longest(probes.load(names, SUITES))
        for names in dict.fromkeys(tuple(each["suites"]) for each in settings)
    }
    for shares in dict.fromkeys((each["pass_share"], each["degraded_share"]) for each in settings):
        probes.Thresholds(*shares)
    for name, entry in CONFIG.experiments.items():
        clients.check(name, entry["sweep"])
    if workflow.is_main_process:  # a file of prompts may be large
        for name in {entry["sweep"]["prompts"] for entry in CONFIG.experiments.values()}:
            prompts.load(name)
except ValueError as error:
    sys.exit(str(error))

# On a cluster: the kind of node of each experiment, or why none will do.
KINDS = {
    name: NODES.choose(entry["requires"], plan.gpus_needed(entry))
    for name, entry in CONFIG.experiments.items()
    if NODES
}

ENGINES = {name: entry["engine"] for name, entry in CONFIG.experiments.items()}
if complaint := cluster.torn(ENGINES, KINDS):
    sys.exit(f"{CONFIG_FILE}: {complaint}")

# The screen: experiments whose `requires` this machine can't meet. They get a plan that says so,
# and what only they need (metadata, engines, readings) is not even asked for.
SCREENED = {
    name: reason
    for name, entry in CONFIG.experiments.items()
    if (
        reason := (
            cluster.refusal(KINDS[name]) if NODES else hardware.screen(entry["requires"], HARDWARE)
        )
    )
}
RUNNABLE = [name for name in CONFIG.experiments if name not in SCREENED]

# What one Slurm job makes is tried again on its node, not as a whole.
SENDS = NODES is not None and "BRINGUP_ON_NODE" not in os.environ
FETCH_RETRIES = 0 if SENDS else 2

# Jobs hand this to the processes that they leave behind, which end with this one.
os.environ.update(BRINGUP_OWNER=str(os.getpid()))

if not SENDS:
    workflow.global_resources.setdefault("gpu", len(HARDWARE["gpus"]))
    workflow.global_resources.setdefault("cpu_server", 1)


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    experiment=one_of(CONFIG.experiments),
    checkpoint=one_of(CONFIG.checkpoints),
    engine=one_of(CONFIG.engines),
    concurrency=r"[1-9]\d*",
    boot=r"[2-9]|[1-9]\d+",
    node=one_of(NODES.kinds if NODES else []),


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


def of_draft(document):
    """Input function: a document of the experiment's draft checkpoint, if it has one."""

    def pick(wildcards):
        draft = CONFIG.experiments[wildcards.experiment].get("draft")
        if not draft or wildcards.experiment in SCREENED:
            return []
        return f"results/checkpoints/{draft}/{document}.json"

    return pick


def draft_reading_of(wildcards):
    """Input function: how the experiment's engine reads its draft checkpoint, if it has one."""
    entry = CONFIG.experiments[wildcards.experiment]
    if not entry.get("draft") or wildcards.experiment in SCREENED:
        return []
    return f"results/readings/{entry['draft']}--{entry['engine']}.json"


def gpus(wildcards):
    """Resource function: the GPUs that a job holds, at most those that there are."""
    needed = plan.gpus_needed(CONFIG.experiments[wildcards.experiment])
    return min(needed, len(HARDWARE["gpus"]))


def cpu_server(wildcards):
    """Resource function: without GPUs, and on a cluster's node, one job at a time uses a server."""
    return 0 if HARDWARE["gpus"] and not NODES else 1


def undisturbed(wildcards):
    """Threads function of what uses a server: every core where nothing else may run meanwhile."""
    alone = CONFIG.experiments[wildcards.experiment]["sweep"]["isolation"] == "host"
    return ALL_CORES if alone else 1


def largest_first(stage):
    """Priority function of what uses a server: a GPU counts, and one in use more than a free one.

    Slightly more than in proportion, or eight small experiments would always come before one that
    needs eight GPUs.
    """

    def priority(wildcards):
        return stage * max(1, plan.gpus_needed(CONFIG.experiments[wildcards.experiment])) ** 1.05

    return priority


def hardware_of(wildcards):
    """Input function: what the experiment is planned for."""
    kind = KINDS.get(wildcards.experiment)
    if wildcards.experiment in SCREENED or kind is None:
        return "results/hardware.json"
    return f"results/hardware/{kind.name}.json"


def on_node(stage):
    """Resources of a stage where jobs are sent to a cluster: its node, and the seconds it takes."""
    if not NODES:
        return {}

    def seconds(wildcards, input):
        entry = CONFIG.experiments[wildcards.experiment]
        return math.ceil(plan.seconds(artifact.read(input.plan), stage, entry["sweep"]))

    def load_s(wildcards, input):
        return math.ceil(plan.seconds(artifact.read(input.plan), "load", {}))

    def alone(wildcards):
        return int(undisturbed(wildcards) > 1)

    return {
        "node": lambda wildcards: KINDS[wildcards.experiment].name,
        "seconds": seconds,
        **({"load_s": load_s, "alone": alone} if stage != "weights" else {}),
    }


def users_of(wildcards):
    """The experiments that can run and share what a job makes, by its wildcards."""
    same = {key: value for key, value in wildcards.items() if key in ("checkpoint", "engine")}
    every = [CONFIG.experiments[name] for name in RUNNABLE]
    return [entry for entry in every if same.items() <= entry.items()] or every


def for_cuda(wildcards):
    """Params function: whether an engine is built for GPUs, as where its first user runs."""
    if NODES:
        return bool(KINDS[users_of(wildcards)[0]["name"]].hardware["gpus"])
    return bool(HOST["gpus"])


def on_shared_node(seconds):
    """Resources of a job for several experiments: a node of a kind that one of them runs on."""
    if not NODES:
        return {}

    def kind(wildcards):
        return KINDS[users_of(wildcards)[0]["name"]]

    return {
        "node": lambda wildcards: kind(wildcards).name,
        "seconds": seconds,
        "gpu": lambda wildcards: min(1, len(kind(wildcards).hardware["gpus"])),
    }


def points_of(name):
    """The points of an experiment: each level once for each boot."""
    sweep = CONFIG.experiments[name]["sweep"]
    again = ["", *(f".boot{boot}" for boot in range(2, sweep["boots"] + 1))]
    folder = f"results/experiments/{name}/points"
    return [f"{folder}/c{level}{boot}.json" for boot in again for level in sweep["concurrency"]]


PLACES = {name: place for place, name in enumerate(CONFIG.experiments)}
MOST_BOOTS = max([2, *(entry["sweep"]["boots"] for entry in CONFIG.experiments.values())])


def turn(wildcards):
    """Priority function of later boots: they take turns, each experiment's second before anyone's
    third, so that what drifts hits all alike. Between 0 and 1: first everything runs once."""
    before = (int(wildcards.boot) - 2) * len(PLACES) + PLACES[wildcards.experiment]
    return 1 - before / (MOST_BOOTS * len(PLACES))


def interpreter_for_forms(wildcards):
    """Input function: the engine of the first experiment that asks for a quantized form."""
    made = [f"{ARITHMETIC}/{form}" for form in FORMS]
    return next(
        f"results/engines/{entry['engine']}/engine.json"
        for entry in CONFIG.experiments.values()
        if CONFIG.checkpoints[entry["checkpoint"]].get("path") in made
    )


def local_files(wildcards):
    """Input function: the files of a local checkpoint that tell what it is."""
    path = CONFIG.checkpoints[wildcards.checkpoint].get("path")
    if path is None:
        return []
    folder = Path(path)
    if folder.parent == Path(ARITHMETIC) and folder.name in FORMS:
        return [f"{path}/config.json", f"{path}/model.safetensors"]
    return sorted(
        str(file) for kind in ("*.json", "*.safetensors", "*.gguf") for file in folder.glob(kind)
    )


def engine_files(wildcards):
    """Input function: the patch files that an engine's entry names."""
    patches = CONFIG.engines[wildcards.engine].get("patches", [])
    return [patch["file"] for patch in patches if "file" in patch]


def longest_question(wildcards):
    """Params function: which of an experiment's questions needs most tokens, and how many."""
    suites = CONFIG.experiments[wildcards.experiment]["probes"]["suites"]
    return list(LONGEST[tuple(suites)])


def suites(wildcards):
    """Input function: the question files of an experiment."""
    names = CONFIG.experiments[wildcards.experiment]["probes"]["suites"]
    return [str(suite_file(name)) for name in names]


def prompt_file(wildcards):
    """Input function: the texts that a sweep sends; none if it sends random tokens."""
    path = prompts.file_of(CONFIG.experiments[wildcards.experiment]["sweep"]["prompts"])
    return [] if path is None else os.path.relpath(path)


def sweep_settings(wildcards):
    """Params function: how to measure, without what there is of it (adding a level or a boot runs
    that one) and without what is only asked of the results."""
    sweep = CONFIG.experiments[wildcards.experiment]["sweep"]
    return {
        key: value for key, value in sweep.items() if key not in ("concurrency", "boots", "limits")
    }


def profiled(name):
    """Tell whether an experiment wants to know which kernels run."""
    return bool(CONFIG.experiments[name]["kernels"])


def predictions_of(reference):
    return (
        reference if is_recorded(reference) else f"results/experiments/{reference}/predictions.json"
    )


def reference_file(wildcards):
    """Input function: the predictions that an experiment's are held against."""
    return predictions_of(CONFIG.experiments[wildcards.experiment]["reference"])


def documents_of(name):
    """Every document that the report reads about an experiment; what was screened has a plan only."""
    folder = f"results/experiments/{name}"
    if name in SCREENED:
        return [f"{folder}/plan.json"]
    entry = CONFIG.experiments[name]
    return [
        f"results/checkpoints/{entry['checkpoint']}/metadata.json",
        f"results/checkpoints/{entry['checkpoint']}/format.json",
        f"results/engines/{entry['engine']}/engine.json",
        f"results/readings/{entry['checkpoint']}--{entry['engine']}.json",
        *(f"{folder}/{stage}.json" for stage in ("plan", "weights", "server", "probe")),
        *points_of(name),
        *([f"{folder}/reference.json"] if "reference" in entry else []),
        *([f"{folder}/accuracy.json"] if "accuracy" in entry else []),
        *([f"{folder}/kernels.json"] if profiled(name) else []),
    ]


def report_documents():
    """Every document that the report reads."""
    return sorted({path for name in CONFIG.experiments for path in documents_of(name)})


def write_asked():
    """Write down what a report is made of, so that one can be written without Snakemake."""
    documents = ["results/hardware.json", *report_documents()]
    asked.write(Path("results"), list(CONFIG.experiments.values()), documents)
