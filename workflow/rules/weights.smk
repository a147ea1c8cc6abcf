rule weights:
    input:
        plan="results/experiments/{experiment}/plan.json",
        metadata=of_checkpoint("metadata"),
    output:
        "results/experiments/{experiment}/weights.json",
    log:
        "results/experiments/{experiment}/logs/weights.log",
    priority: 5
    retries: 2
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("weights"),
    script:
        "../scripts/weights.py"
