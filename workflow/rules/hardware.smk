rule hardware:
    output:
        "results/hardware.json",
    log:
        "results/logs/hardware.log",
    priority: 5
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("hardware"),
        fingerprint=HARDWARE,
    script:
        "../scripts/hardware.py"
