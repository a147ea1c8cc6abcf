def local_files(wildcards):
    """Input function: the files of a local checkpoint that tell what it is."""
    path = CONFIG.checkpoints[wildcards.checkpoint].get("path")
    if path is None:
        return []
    folder = Path(path)
    if folder.parent == Path(ARITHMETIC) and folder.name in FORMS:
        return [f"{path}/config.json", f"{path}/model.safetensors"]
    return sorted(
        str(file) for kind in ("*.json", "*.safetensors", "*.gguf") for file in folder.glob(kind)
    )


rule metadata:
    input:
        local=local_files,
    output:
        "results/checkpoints/{checkpoint}/metadata.json",
    log:
        "results/checkpoints/{checkpoint}/logs/metadata.log",
    retries: 2
    conda:
        "../../envs/workflow.yaml"
    params:
        code=code("metadata"),
        entry=lambda wildcards: CONFIG.checkpoints[wildcards.checkpoint],
    script:
        "../scripts/metadata.py"
