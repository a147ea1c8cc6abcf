# Benchmarks by a harness of the user's, for experiments that ask for them.
rule accuracy:
    input:
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        probe="results/experiments/{experiment}/probe.json",
    output:
        "results/experiments/{experiment}/accuracy.json",
    log:
        "results/experiments/{experiment}/logs/accuracy.log",
    priority: largest_first(26)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("probe"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("accuracy"),
        accuracy=lambda wildcards: CONFIG.experiments[wildcards.experiment]["accuracy"],
    script:
        "../scripts/accuracy.py"
