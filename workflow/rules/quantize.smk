# The quantized forms of the small arithmetic checkpoint, made from its bf16 weights. It runs in
# an engine's interpreter, which has torch.
rule quantize:
    input:
        make=[os.path.relpath(f"{workflow.basedir}/{ARITHMETIC}/{name}") for name in QUANTIZER],
        weights=f"{ARITHMETIC}/bf16/model.safetensors",
        engine=interpreter_for_forms,
    output:
        configs=expand("{folder}/{form}/config.json", folder=ARITHMETIC, form=FORMS),
        weights=expand("{folder}/{form}/model.safetensors", folder=ARITHMETIC, form=FORMS),
    log:
        "results/logs/quantize.log",
    priority: 5
    conda:
        "../../envs/workflow.yaml"
    resources:
        **on_shared_node(1200),
    params:
        code=code("quantize"),
        folder=lambda wildcards, input: str(Path(input.weights).parents[1]),
        forms=FORMS,
    script:
        "../scripts/quantize.py"
