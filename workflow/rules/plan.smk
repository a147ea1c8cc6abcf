rule plan:
    input:
        hardware=hardware_of,
        format=of_checkpoint("format"),
        engine=of_engine,
        reading=reading_of,
        draft_format=of_draft("format"),
        draft_reading=draft_reading_of,
    output:
        "results/experiments/{experiment}/plan.json",
    log:
        "results/experiments/{experiment}/logs/plan.log",
    priority: 5
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("plan"),
        entry=experiment_entry(
            "name",
            "checkpoint",
            "draft",
            "engine",
            "requires",
            "server",
            "env",
            "force",
            "accept_conflict",
            "accept_misreading",
        ),
        screened=lambda wildcards: SCREENED.get(wildcards.experiment),
    script:
        "../scripts/plan.py"


# What a full run would cost, told before it is run.
rule plans:
    input:
        plans=expand("results/experiments/{name}/plan.json", name=CONFIG.experiments),
    output:
        "results/plans.md",
    log:
        "results/logs/plans.log",
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("plans"),
        sweeps={name: entry["sweep"] for name, entry in CONFIG.experiments.items()},
        profiled=[name for name in CONFIG.experiments if profiled(name)],
        local=[name for name, entry in CONFIG.checkpoints.items() if "path" in entry],
    script:
        "../scripts/plans.py"
