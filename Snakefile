# The pipeline, one stage a file in workflow/rules.  Each experiment goes
# metadata → detect → engine → reading → plan → weights → launch → probe → point, kernels → report.
from snakemake.utils import min_version

min_version("9.25")


include: "workflow/rules/common.smk"
include: "workflow/rules/hardware.smk"
include: "workflow/rules/quantize.smk"
include: "workflow/rules/metadata.smk"
include: "workflow/rules/detect.smk"
include: "workflow/rules/engine.smk"
include: "workflow/rules/reading.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/weights.smk"
include: "workflow/rules/launch.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/point.smk"
include: "workflow/rules/reference.smk"
include: "workflow/rules/accuracy.smk"
include: "workflow/rules/kernels.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        "results/report.md",


# What is asked for, for `python -m bringup.report`, which writes the report while a run goes on.
onstart:
    write_asked()
