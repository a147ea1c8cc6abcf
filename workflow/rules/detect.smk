rule detect:
    input:
        metadata="results/checkpoints/{checkpoint}/metadata.json",
    output:
        "results/checkpoints/{checkpoint}/format.json",
    log:
        "results/checkpoints/{checkpoint}/logs/detect.log",
    priority: 5
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("detect"),
    script:
        "../scripts/detect.py"
