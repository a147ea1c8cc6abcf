def interpreter_for_form(wildcards):
    """Input function: the engine of the first experiment that asks for this form."""
    path = f"{ARITHMETIC}/{wildcards.form}"
    return next(
        f"results/engines/{entry['engine']}/engine.json"
        for entry in CONFIG.experiments.values()
        if CONFIG.checkpoints[entry["checkpoint"]].get("path") == path
    )


# The quantized forms of the small arithmetic checkpoint, made from its bf16 weights. It runs in
# an engine's interpreter, which has torch.
rule quantize:
    input:
        code=code("quantize"),
        make=expand(
            "{project}/resources/arithmetic-moe/make/{name}",
            project=os.path.relpath(workflow.basedir),
            name=["quantize.py"],
        ),
        weights=f"{ARITHMETIC}/bf16/model.safetensors",
        engine=interpreter_for_form,
    output:
        config=ARITHMETIC + "/{form}/config.json",
        weights=ARITHMETIC + "/{form}/model.safetensors",
    log:
        "results/logs/quantize-{form}.log",
    wildcard_constraints:
        form="|".join(FORMS),
    conda:
        "../../envs/workflow.yaml"
    script:
        "../scripts/quantize.py"
