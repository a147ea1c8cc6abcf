# What an experiment predicts on fixed texts, and how far that is from its reference.
# Asked only of experiments that have a reference or are one; after the points, before kernels.
rule predictions:
    input:
        texts="resources/texts/reference.yaml",
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        server="results/experiments/{experiment}/server.json",
    output:
        "results/experiments/{experiment}/predictions.json",
    log:
        "results/experiments/{experiment}/logs/predictions.log",
    priority: largest_first(27)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("probe"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("predictions"),
        timeout_s=lambda wildcards: CONFIG.experiments[wildcards.experiment]["probes"]["timeout_s"],
    script:
        "../scripts/predictions.py"


rule reference:
    input:
        own="results/experiments/{experiment}/predictions.json",
        base=reference_file,
    output:
        "results/experiments/{experiment}/reference.json",
    log:
        "results/experiments/{experiment}/logs/reference.log",
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("reference"),
        reference=lambda wildcards: CONFIG.experiments[wildcards.experiment]["reference"],
    script:
        "../scripts/reference.py"
