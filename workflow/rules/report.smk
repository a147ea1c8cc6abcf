def documents_of(name):
    """Every document that the report reads about an experiment; what was screened has a plan only."""
    folder = f"results/experiments/{name}"
    if name in SCREENED:
        return [f"{folder}/plan.json"]
    entry = CONFIG.experiments[name]
    return [
        f"results/checkpoints/{entry['checkpoint']}/metadata.json",
        f"results/checkpoints/{entry['checkpoint']}/format.json",
        f"results/engines/{entry['engine']}/engine.json",
        f"results/readings/{entry['checkpoint']}--{entry['engine']}.json",
        *(f"{folder}/{stage}.json" for stage in ("plan", "weights", "server", "probe")),
        *points_of(name),
        *([f"{folder}/kernels.json"] if profiled(name) else []),
    ]


rule report:
    input:
        hardware="results/hardware.json",
        documents=sorted({path for name in CONFIG.experiments for path in documents_of(name)}),
    output:
        "results/report.md",
        "results/report.html",
        "results/report.json",
        "results/points.csv",
        "results/points.jsonl",
    log:
        "results/logs/report.log",
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("report"),
        experiments=list(CONFIG.experiments.values()),
    script:
        "../scripts/report.py"
