rule reading:
    input:
        metadata="results/checkpoints/{checkpoint}/metadata.json",
        format="results/checkpoints/{checkpoint}/format.json",
        engine="results/engines/{engine}/engine.json",
    output:
        "results/readings/{checkpoint}--{engine}.json",
    log:
        "results/readings/logs/{checkpoint}--{engine}.log",
    priority: 5
    conda:
        "../../envs/workflow.yaml"
    resources:
        **on_shared_node(600),
    params:
        code=code("reading"),
    script:
        "../scripts/reading.py"
