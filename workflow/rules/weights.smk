rule weights:
    input:
        code=code("weights"),
        plan="results/experiments/{experiment}/plan.json",
        metadata=of_checkpoint("metadata"),
    output:
        "results/experiments/{experiment}/weights.json",
    log:
        "results/experiments/{experiment}/logs/weights.log",
    conda:
        "../../envs/workflow.yaml"
    retries: 2
    script:
        "../scripts/weights.py"
