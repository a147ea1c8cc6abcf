rule point:
    input:
        suites=suites,
        prompts=prompt_file,
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
        probe="results/experiments/{experiment}/probe.json",
    output:
        "results/experiments/{experiment}/points/c{concurrency}.json",
    log:
        "results/experiments/{experiment}/logs/c{concurrency}.log",
    priority: largest_first(30)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("point"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("point"),
        probes=lambda wildcards: CONFIG.experiments[wildcards.experiment]["probes"],
        sweep=sweep_settings,
    script:
        "../scripts/point.py"


# The same on another life of the server, which differs from the first more than repeats do.
use rule point as point_again with:
    output:
        "results/experiments/{experiment}/points/c{concurrency}.boot{boot}.json",
    log:
        "results/experiments/{experiment}/logs/c{concurrency}.boot{boot}.log",
    priority: turn
