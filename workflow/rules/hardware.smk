rule hardware:
    input:
        code=code("hardware"),
    output:
        "results/hardware.json",
    log:
        "results/logs/hardware.log",
    conda:
        "../../envs/workflow.yaml"
    params:
        fingerprint=HARDWARE,
    script:
        "../scripts/hardware.py"
