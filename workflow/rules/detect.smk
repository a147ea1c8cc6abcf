rule detect:
    input:
        code=code("detect"),
        metadata="results/checkpoints/{checkpoint}/metadata.json",
    output:
        "results/checkpoints/{checkpoint}/format.json",
    log:
        "results/checkpoints/{checkpoint}/logs/detect.log",
    conda:
        "../../envs/workflow.yaml"
    script:
        "../scripts/detect.py"
