rule hardware:
    output:
        "results/hardware.json",
    log:
        "results/logs/hardware.log",
    priority: 5
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("hardware"),
        fingerprint=HARDWARE,
    script:
        "../scripts/hardware.py"


# On a cluster: one node of each kind, as the table of nodes describes it.
rule node:
    output:
        "results/hardware/{node}.json",
    log:
        "results/logs/hardware/{node}.log",
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("hardware"),
        fingerprint=lambda wildcards: NODES.kinds[wildcards.node].hardware,
    script:
        "../scripts/hardware.py"
