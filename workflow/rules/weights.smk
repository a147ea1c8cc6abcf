rule weights:
    input:
        plan="results/experiments/{experiment}/plan.json",
        metadata=of_checkpoint("metadata"),
        draft=of_draft("metadata"),
    output:
        "results/experiments/{experiment}/weights.json",
    log:
        "results/experiments/{experiment}/logs/weights.log",
    priority: 5
    retries: FETCH_RETRIES
    conda:
        "../../envs/workflow.yaml"
    resources:
        **on_node("weights"),
    params:
        code=code("weights"),
    script:
        "../scripts/weights.py"
