rule report:
    input:
        hardware="results/hardware.json",
        documents=report_documents(),
    output:
        "results/report.md",
        "results/report.html",
        "results/report.json",
        "results/points.csv",
        "results/points.jsonl",
    log:
        "results/logs/report.log",
    localrule: True
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("report"),
        experiments=list(CONFIG.experiments.values()),
    script:
        "../scripts/report.py"
