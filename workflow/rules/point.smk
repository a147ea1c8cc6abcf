rule point:
    input:
        suites=suites,
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        probe="results/experiments/{experiment}/probe.json",
    output:
        "results/experiments/{experiment}/points/c{concurrency}.json",
    log:
        "results/experiments/{experiment}/logs/c{concurrency}.log",
    priority: 30
    conda:
        "../../envs/workflow.yaml"
    resources:
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("point"),
        probes=lambda wildcards: CONFIG.experiments[wildcards.experiment]["probes"],
        sweep=sweep_without_levels,
    script:
        "../scripts/point.py"
