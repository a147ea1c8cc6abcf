rule engine:
    input:
        patches=engine_files,
    output:
        "results/engines/{engine}/engine.json",
    log:
        "results/engines/{engine}/patches.log",
    priority: 5
    conda:
        "../../envs/workflow.yaml"
    resources:
        **on_shared_node(3600),
    params:
        code=code("engine"),
        entry=lambda wildcards: CONFIG.engines[wildcards.engine],
        cuda=for_cuda,
    script:
        "../scripts/engine.py"
