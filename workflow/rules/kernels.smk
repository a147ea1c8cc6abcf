rule kernels:
    input:
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        server="results/experiments/{experiment}/server.json",
        probe="results/experiments/{experiment}/probe.json",
    output:
        "results/experiments/{experiment}/kernels.json",
    log:
        "results/experiments/{experiment}/logs/kernels.log",
    priority: largest_first(25)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("kernels"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("kernels"),
        kernels=lambda wildcards: CONFIG.experiments[wildcards.experiment]["kernels"],
    script:
        "../scripts/kernels.py"
