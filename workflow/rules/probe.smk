rule probe:
    input:
        suites=suites,
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        server="results/experiments/{experiment}/server.json",
    output:
        "results/experiments/{experiment}/probe.json",
    log:
        "results/experiments/{experiment}/logs/probe.log",
    priority: largest_first(20)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("probe"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("probe"),
        probes=lambda wildcards: CONFIG.experiments[wildcards.experiment]["probes"],
    script:
        "../scripts/probe.py"
