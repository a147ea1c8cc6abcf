rule reading:
    input:
        code=code("reading"),
        metadata="results/checkpoints/{checkpoint}/metadata.json",
        format="results/checkpoints/{checkpoint}/format.json",
        engine="results/engines/{engine}/engine.json",
    output:
        "results/readings/{checkpoint}--{engine}.json",
    log:
        "results/readings/logs/{checkpoint}--{engine}.log",
    conda:
        "../../envs/workflow.yaml"
    script:
        "../scripts/reading.py"
