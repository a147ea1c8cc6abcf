# launch, probe, point and kernels lease the same server (docs/design.md §5). Later stages come
# first, so that each experiment's server is loaded once; kernels is the last, as a profile may
# slow a server down. Second boots come after all else (rule point_again).
rule launch:
    input:
        plan="results/experiments/{experiment}/plan.json",
        weights="results/experiments/{experiment}/weights.json",
        engine=of_engine,
    output:
        server="results/experiments/{experiment}/server.json",
        script="results/experiments/{experiment}/serve.sh",
    log:
        "results/experiments/{experiment}/logs/launch.log",
    priority: largest_first(10)
    conda:
        "../../envs/workflow.yaml"
    threads: undisturbed
    resources:
        **on_node("launch"),
        gpu=gpus,
        cpu_server=cpu_server,
    params:
        code=code("launch"),
        described=bool(CONFIG.hardware),
        longest=longest_question,
    script:
        "../scripts/launch.py"
