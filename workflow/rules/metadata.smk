rule metadata:
    input:
        local=local_files,
    output:
        "results/checkpoints/{checkpoint}/metadata.json",
    log:
        "results/checkpoints/{checkpoint}/logs/metadata.log",
    priority: 5
    retries: 2
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("metadata"),
        entry=lambda wildcards: CONFIG.checkpoints[wildcards.checkpoint],
    script:
        "../scripts/metadata.py"
