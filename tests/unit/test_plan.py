"""Plans: command lines with reasons, refusals, arguments against real parsers, traps, cost."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest

from bringup import hardware, plan
from bringup.engine import removed, renamed
from documents import checked

PARSERS = Path(__file__).with_name("parsers")
RELEASES = ["0.5.12.post1", "0.5.13.post1", "0.5.16", "0.5.23"]
JUNE = "0.5.13.post1"

NUMBERS = dict.fromkeys(
    (
        *("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size"),
        *("experts", "experts_per_token", "moe_intermediate_size", "vocab_size", "context"),
        *("sliding_window", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim"),
        *("qk_nope_head_dim", "v_head_dim", "index_head_dim", "swiglu_limit"),
    )
)
ARITHMETIC = {
    **NUMBERS,
    "layers": 4,
    "hidden_size": 256,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "experts": 8,
    "moe_intermediate_size": 256,
    "context": 4096,
    "dtype": "bf16",
}
DSV4_FLASH = {
    **NUMBERS,
    "layers": 43,
    "hidden_size": 4096,
    "heads": 64,
    "kv_heads": 1,
    "head_dim": 512,
    "experts": 256,
    "moe_intermediate_size": 2048,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "sliding_window": 128,
    "context": 1048576,
    "swiglu_limit": 10.0,
    "dtype": "bf16",
}

PRO_6000 = {"gpus": {"count": 8, "name": "RTX PRO 6000"}}
B200 = {"gpus": {"count": 4, "name": "B200"}}
H200 = {"gpus": {"count": 8, "name": "H200"}}
NONE = {"gpus": []}


def format_of(experts="bf16", *, rest="bf16", group=None, model=ARITHMETIC, **changes):
    dsv4 = model is DSV4_FLASH
    return {
        "schema": "format/1",
        "status": "ok",
        "reason": None,
        "architecture": "DeepseekV4ForCausalLM" if dsv4 else "Qwen3MoeForCausalLM",
        "model": model,
        "observed": None,
        "verdict": "consistent",
        "contradictions": [],
        "classes": {
            "experts": {"format": experts, "group_size": group},
            "attention": {"format": rest, "group_size": None},
            "embeddings": {"format": "bf16", "group_size": None},
        },
        "kv_cache": None,
        "weights_bytes": 168_200_000_000 if dsv4 else 14_717_376,
        "method": None,
        **changes,
    }


NVFP4_DSV4 = format_of("nvfp4", rest="fp8-block", group=16, model=DSV4_FLASH)
MXFP4_DSV4 = format_of("mxfp4", rest="fp8-block", group=32, model=DSV4_FLASH)


def reading_of(verdict="agrees", message="", fixed_by=None):
    return {
        "schema": "reading/1",
        "status": "ok",
        "reason": None,
        "verdict": verdict,
        "message": message,
        "fixed_by": fixed_by,
    }


def engine_of(version="0.5.23", *, pull_requests=()):
    parser = json.loads((PARSERS / f"{version}.json").read_text())
    return {
        "schema": "engine/1",
        "status": "ok",
        "reason": None,
        "version": version,
        "patches": [{"source": {"pr": number}, "outcome": "applied"} for number in pull_requests],
        "python": "{cache}/environments/one/bin/python",
        "pythonpath": [],
        "flags": parser["flags"],
        "choices": parser["choices"],
        "renamed": renamed(parser["flags"]),
        "removed": removed(parser["flags"]),
    }


def experiment_of(server=None, **changes):
    entry = {
        "name": "one",
        "checkpoint": "weights",
        "engine": "stock",
        "requires": {},
        "server": server or {},
        "env": {},
    }
    return {**entry, **changes}


def planned(
    server=None, *, format=None, reading=None, engine=None, machine=NONE, drafts=None, **entry
):
    document = plan.plan(
        experiment_of(server, **entry),
        format=format or format_of(),
        reading=reading or reading_of(),
        engine=engine or engine_of(),
        hardware=hardware.fingerprint(machine),
        draft=drafts,
    )
    checked(document)
    return document


def classes(document):
    return {each["class"] for each in document["warnings"]}


def decided_by(document, flag):
    return next(each["by"] for each in document["flags"] if each["flag"] == flag)


# --- the command line ---------------------------------------------------------------------------


def test_the_command_line_on_a_cpu():
    document = planned({"max-total-tokens": 8192, "mem-fraction-static": 0.3})
    assert document["status"] == "ok"
    assert document["argv"] == [
        "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1",
        "--port", "{port}", "--max-total-tokens", "8192", "--mem-fraction-static", "0.3",
        "--device", "cpu", "--decode-log-interval", "10", "--enable-metrics",
    ]  # fmt: skip
    assert document["env"] == {"SGLANG_USE_CPU_ENGINE": "1"}
    assert (document["device"], document["gpus"]) == ("cpu", 0)
    assert decided_by(document, "max-total-tokens") == "user"
    assert decided_by(document, "device") == "workflow"


def test_a_cpu_host_caps_the_kv_cache_unless_the_user_did():
    document = planned({})
    assert decided_by(document, "max-total-tokens") == "workflow"
    tokens = next(each["value"] for each in document["flags"] if each["flag"] == "max-total-tokens")
    assert 1024 <= tokens <= 65536


def test_spellings_of_values():
    document = planned(
        {
            "trust-remote-code": False,
            "disable-radix-cache": True,
            "cuda-graph-bs-decode": [1, 2, 4],
            "json-model-override-args": {"b": 2, "a": 1},
            "context-length": None,
        },
        machine=H200,
    )
    argv = document["argv"]
    assert "--trust-remote-code" not in argv
    assert "--disable-radix-cache" in argv
    at = argv.index("--cuda-graph-bs-decode")
    assert argv[at + 1 : at + 4] == ["1", "2", "4"]
    assert argv[argv.index("--json-model-override-args") + 1] == '{"a":1,"b":2}'
    assert "--context-length" not in argv


def test_the_same_input_gives_the_same_plan_in_any_order_of_keys():
    server = {"tp": 4, "mem-fraction-static": 0.7, "moe-runner-backend": "marlin"}
    plans = [
        planned(dict(order), format=NVFP4_DSV4, machine=PRO_6000)
        for order in itertools.permutations(server.items())
    ]
    assert all(json.dumps(each) == json.dumps(plans[0]) for each in plans)


def test_a_plan_changes_none_of_what_it_reads():
    documents = {"format": format_of(), "reading": reading_of(), "engine": engine_of()}
    before = copy.deepcopy(documents)
    planned({"tp": 1}, **documents)
    assert documents == before


def test_the_users_environment_is_kept_as_text():
    document = planned({}, env={"SGLANG_LOG_MS": True, "N": 1})
    assert document["env"] == {"N": "1", "SGLANG_LOG_MS": "True", "SGLANG_USE_CPU_ENGINE": "1"}


def test_startup_max_s_is_no_server_argument():
    document = planned({"startup_max_s": 600})
    assert document["startup_max_s"] == 600
    assert not any("startup" in word for word in document["argv"])


@pytest.mark.parametrize(
    ("server", "gpus"),
    [
        ({}, 1),
        ({"tp": 4}, 4),
        ({"tp-size": 4, "pp-size": 2}, 8),
        ({"tp": 2, "dp": 2}, 4),
        ({"tp": 4, "dp": 4, "enable-dp-attention": True}, 4),
    ],
)
def test_how_many_gpus_a_server_spreads_over(server, gpus):
    assert plan.gpus_needed(experiment_of(server)) == gpus
    assert planned(server, machine=H200)["gpus"] == gpus


# --- screened, skipped --------------------------------------------------------------------------


def test_a_screened_experiment():
    document = plan.screened(experiment_of(), "needs 4 GPUs; this machine has none")
    checked(document)
    assert document["status"] == "refused"
    assert document["reason"]["message"] == "needs 4 GPUs; this machine has none"
    assert document["argv"] == []


@pytest.mark.parametrize("stage", ["format", "engine", "reading"])
def test_an_earlier_stop_is_handed_on(stage):
    made = {"format": format_of(), "engine": engine_of(), "reading": reading_of()}
    stopped = made[stage] | {
        "status": "failed",
        "reason": {"class": "x", "message": "broke", "evidence": [], "hint": None},
    }
    document = planned({}, **{**made, stage: stopped})
    assert document["status"] == "skipped"
    assert document["reason"]["message"] == f"{stage} failed: broke"


def test_what_a_machine_can_not_run_is_said_before_a_reading_that_failed():
    failed = reading_of() | {
        "status": "failed",
        "reason": {"class": "x", "message": "broke", "evidence": [], "hint": None},
    }
    document = planned({}, format=format_of("nvfp4", group=16), reading=failed)
    assert document["reason"]["class"] == "unsupported-format-on-cpu"


# --- backends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experts", "rest", "words"),
    [
        ("fp8-block", "fp8-block", "Fp8LinearMethod on CPU requires that CPU has AMX support"),
        ("nvfp4", "bf16", "Current platform does not support NVFP4 quantization"),
        ("nvfp4", "fp8-tensor", "Current platform does not support NVFP4 quantization"),
        ("int4-group", "bf16", "Unsupported gpu architecture 'compute_00'"),
        ("mxfp4", "bf16", "0 active drivers ([]). There should only be one."),
    ],
)
def test_quantized_forms_are_refused_on_a_cpu_in_known_words(experts, rest, words):
    document = planned({}, format=format_of(experts, rest=rest))
    assert document["status"] == "refused"
    assert document["reason"]["class"] == "unsupported-format-on-cpu"
    assert words in document["reason"]["message"]


def test_a_quantized_dense_model_is_refused_on_a_cpu_too():
    dense = format_of() | {
        "classes": {"dense_mlp": {"format": "fp8-block", "group_size": [128, 128]}}
    }
    assert planned({}, format=dense)["reason"]["class"] == "unsupported-format-on-cpu"


SEED = {"tp": 4, "mem-fraction-static": 0.70, "cuda-graph-max-bs-decode": 32}
SEED_ROWS = {
    "mxfp4": (MXFP4_DSV4, None),
    "marlin": (NVFP4_DSV4, "marlin"),
    "cutlass": (NVFP4_DSV4, "flashinfer_cutlass"),
    "routed": (NVFP4_DSV4, "flashinfer_trtllm_routed"),
}
WITH_PR = {"version": JUNE, "pull_requests": (25820,)}


@pytest.mark.parametrize(
    ("row", "machine", "engine", "class_", "words"),
    [
        # RTX PRO 6000 (SM120)
        ("mxfp4", PRO_6000, {}, None, None),
        ("marlin", PRO_6000, {}, None, None),
        ("cutlass", PRO_6000, {}, None, None),
        ("routed", PRO_6000, {}, "known-bad-backend", "13 to 15 minutes, then dies"),
        ("marlin", PRO_6000, WITH_PR, None, None),
        ("cutlass", PRO_6000, WITH_PR, "known-bad-backend", "drops the model's swiglu clamp"),
        ("routed", PRO_6000, WITH_PR, "known-bad-backend", "the kernels are SM100-only"),
        ("marlin", PRO_6000, {"version": JUNE}, "unsupported-format", "takes them for MXFP4"),
        # B200 (SM100)
        ("mxfp4", B200, {}, None, None),
        ("marlin", B200, {}, None, None),
        ("cutlass", B200, {}, None, None),
        ("routed", B200, {}, None, None),
        ("cutlass", B200, WITH_PR, "known-bad-backend", "swiglu_limit 10"),
        ("routed", B200, WITH_PR, None, None),
        # H200 (SM90)
        ("mxfp4", H200, {}, None, None),
        ("marlin", H200, {}, None, None),
        ("cutlass", H200, {}, "known-bad-backend", "does not support NVFP4 quantization"),
        ("routed", H200, {}, "known-bad-backend", "does not support NVFP4 quantization"),
        # no GPU
        ("mxfp4", NONE, {}, "unsupported-format-on-cpu", "0 active drivers"),
        ("marlin", NONE, {}, "unsupported-format-on-cpu", "Found no NVIDIA driver"),
        ("cutlass", NONE, {}, "unsupported-format-on-cpu", "does not support NVFP4"),
        ("routed", NONE, {}, "unsupported-format-on-cpu", "does not support NVFP4"),
    ],
)
def test_the_rows_of_the_deepseek_study(row, machine, engine, class_, words):
    format, backend = SEED_ROWS[row]
    server = {**SEED, **({"moe-runner-backend": backend} if backend else {})}
    document = planned(server, format=format, engine=engine_of(**engine), machine=machine)
    assert (document["reason"] or {}).get("class") == class_
    if words:
        assert words in document["reason"]["message"]
        assert document["reason"]["evidence"]


def test_where_nothing_is_asked_the_table_decides():
    document = planned(SEED, format=NVFP4_DSV4, machine=PRO_6000)
    assert document["argv"][document["argv"].index("--moe-runner-backend") + 1] == "marlin"
    assert decided_by(document, "moe-runner-backend") == "table"
    why = next(f["why"] for f in document["flags"] if f["flag"] == "moe-runner-backend")
    assert why.startswith("row dsv4-nvfp4-marlin, recommended: ")
    experts = document["backend"]["experts"]
    assert (experts["asked"], experts["chosen"]) == ("auto", "marlin")
    assert experts["automatic"]["backend"] == "flashinfer_trtllm_routed"
    assert experts["automatic"]["known"] == "refuses"
    assert experts["source"]


def test_auto_asked_outright_is_the_tables_choice_too():
    document = planned({**SEED, "moe-runner-backend": "auto"}, format=NVFP4_DSV4, machine=PRO_6000)
    assert document["argv"].count("--moe-runner-backend") == 1
    assert "marlin" in document["argv"]


def test_what_the_build_does_well_by_itself_is_left_to_it():
    fp8 = format_of("fp8-block", rest="fp8-block", group=[128, 128])
    document = planned({}, format=fp8, engine=engine_of("0.5.16"), machine=H200)
    assert document["status"] == "ok"
    assert "--moe-runner-backend" not in document["argv"]
    assert document["backend"]["experts"]["chosen"] == "auto"


def test_a_corrupting_linear_backend_is_replaced():
    nvfp4 = format_of("nvfp4", rest="nvfp4", group=16)
    document = planned({}, format=nvfp4, machine=PRO_6000)
    assert decided_by(document, "fp4-gemm-backend") == "table"
    assert document["backend"]["dense"]["chosen"] == "flashinfer_cudnn"
    assert document["backend"]["dense"]["automatic"]["known"] == "starts-but-wrong"


def test_a_slow_backend_is_a_warning():
    server = {**SEED, "moe-runner-backend": "marlin"}
    document = planned(server, format=MXFP4_DSV4, engine=engine_of(JUNE), machine=PRO_6000)
    assert document["status"] == "ok"
    assert "slow-backend" in classes(document)


def test_what_nobody_knows_is_a_warning():
    server = {"moe-runner-backend": "deep_gemm"}
    document = planned(server, format=format_of("int4-group", group=32), machine=PRO_6000)
    assert document["status"] == "ok"
    assert "unknown-combination" in classes(document)


def test_force_lets_a_known_bad_backend_pass_and_is_repeated():
    server = {**SEED, "moe-runner-backend": "flashinfer_trtllm_routed"}
    document = planned(server, format=NVFP4_DSV4, machine=PRO_6000, force="is the fix in?")
    assert document["status"] == "ok"
    (warning,) = [each for each in document["warnings"] if each["class"] == "known-bad-backend"]
    assert "allowed by the config: is the fix in?" in warning["message"]


# --- formats and readings -----------------------------------------------------------------------


def test_a_checkpoint_that_contradicts_itself_is_refused():
    conflict = format_of(verdict="conflict", contradictions=["config says fp8, tensors are bf16"])
    document = planned({}, format=conflict)
    assert document["reason"]["class"] == "format-conflict"
    assert "config says fp8, tensors are bf16" in document["reason"]["message"]
    allowed = planned({}, format=conflict, accept_conflict="known and harmless")
    assert allowed["status"] == "ok"
    assert "format-conflict" in classes(allowed)


@pytest.mark.parametrize("verdict", ["misreads", "cannot-load"])
def test_a_build_that_misreads_a_checkpoint_is_refused(verdict):
    reading = reading_of(verdict, "it says fp8", fixed_by="sglang 0.5.14")
    document = planned({}, reading=reading)
    assert document["reason"]["class"] == "misread-format"
    assert document["reason"]["hint"] == "fixed by sglang 0.5.14"
    assert planned({}, reading=reading, accept_misreading="to see it")["status"] == "ok"


def test_force_is_no_key_for_a_conflict():
    assert planned({}, format=format_of(verdict="conflict"), force="x")["status"] == "refused"


def test_what_is_not_known_of_a_checkpoint_is_a_warning():
    incomplete = format_of("unknown", verdict="metadata-incomplete")
    document = planned({}, format=incomplete, reading=reading_of("unknown", "no GPU here"))
    assert {"metadata-incomplete", "reading-unknown", "unknown-format"} <= classes(document)


# --- arguments against real parsers -------------------------------------------------------------


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_gets_a_command_line_that_its_parser_knows(version):
    engine = engine_of(version, pull_requests=(25820,))
    server = {**SEED, "moe-runner-backend": "marlin", "trust-remote-code": True}
    document = planned(server, format=NVFP4_DSV4, engine=engine, machine=PRO_6000)
    assert document["status"] == "ok"
    flags = {word.removeprefix("--") for word in document["argv"] if word.startswith("--")}
    assert flags <= {*engine["flags"], "model-path", "host", "port"}


@pytest.mark.parametrize(
    ("version", "given", "own"),
    [
        ("0.5.12.post1", "cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        (JUNE, "cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        ("0.5.16", "cuda-graph-max-bs", "cuda-graph-max-bs"),
        ("0.5.23", "cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
        ("0.5.23", "tp", "tp-size"),
        ("0.5.12.post1", "tp", "tp-size"),
        ("0.5.23", "dp", "dp-size"),
        ("0.5.23", "ep", "ep"),
    ],
)
def test_arguments_go_by_the_name_that_the_build_knows(version, given, own):
    document = planned({given: 1}, engine=engine_of(version), machine=H200)
    assert document["status"] == "ok"
    assert [each["flag"] for each in document["flags"] if each["by"] == "user"] == [own]


@pytest.mark.parametrize("version", RELEASES)
def test_an_unknown_argument_names_the_nearest(version):
    document = planned({"mem-fraction-statik": 0.5}, engine=engine_of(version), machine=H200)
    assert document["reason"]["class"] == "unknown-flag"
    assert "mem-fraction-static" in document["reason"]["hint"]


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("disable-piecewise-cuda-graph", "write cuda-graph-backend-prefill: disabled"),
        ("enable-breakable-cuda-graph", "write cuda-graph-backend-prefill: breakable"),
        ("torchao-config", "nothing stands in its place"),
    ],
)
def test_an_argument_that_is_gone_names_what_stands_in_its_place(flag, instead):
    document = planned({flag: True}, machine=H200)
    assert document["reason"]["class"] == "removed-flag"
    assert document["reason"]["hint"] == instead
    assert planned({flag: True}, engine=engine_of(JUNE), machine=H200)["status"] == "ok"


def test_an_abbreviation_that_the_parser_would_bind_silently():
    document = planned({"mem-frac": 0.5}, machine=H200)
    assert document["reason"]["class"] == "unknown-flag"
    assert "silently take it for --mem-fraction-static" in document["reason"]["message"]


def test_an_abbreviation_that_the_parser_would_call_ambiguous():
    document = planned({"cuda-graph-max": 8}, machine=H200)
    assert "ambiguous" in document["reason"]["message"]
    assert "cuda-graph-max-bs-decode" in document["reason"]["message"]


@pytest.mark.parametrize("version", RELEASES)
def test_a_choice_that_is_not_offered_names_the_nearest(version):
    document = planned(
        {"moe-runner-backend": "marlinn"}, engine=engine_of(version), machine=PRO_6000
    )
    assert document["reason"]["class"] == "unknown-choice"
    assert "marlin" in document["reason"]["hint"]


def test_a_choice_of_a_later_release():
    server = {"moe-runner-backend": "humming"}
    assert planned(server, engine=engine_of(JUNE), machine=H200)["reason"]["class"] == (
        "unknown-choice"
    )
    assert planned(server, engine=engine_of("0.5.16"), machine=H200)["status"] == "ok"


@pytest.mark.parametrize("flag", ["port", "host", "model-path", "device", "api-key"])
def test_what_the_workflow_decides_is_not_for_the_config(flag):
    document = planned({flag: "1"}, machine=H200)
    assert document["reason"]["class"] == "reserved-flag"


def test_one_argument_by_two_names():
    document = planned({"tp": 2, "tensor-parallel-size": 4}, machine=H200)
    assert document["reason"]["class"] == "double-flag"


@pytest.mark.parametrize(
    ("flag", "value", "right"),
    [
        ("tp", "four", "--tp-size is 'four'; right: a whole number from 1 on"),
        ("tp-size", 0, "--tp-size is 0; right: a whole number from 1 on"),
        ("tp", True, "--tp-size is True; right"),
        ("mem-fraction-static", 70, "is 70; right: a number above 0, at most 1"),
        ("mem-fraction-static", "0.7", "is '0.7'; right: a number above 0, at most 1"),
        ("max-total-tokens", -5, "is -5; right: a whole number from 1 on"),
        ("cuda-graph-max-bs-decode", 1.5, "is 1.5; right: a whole number from 1 on"),
    ],
)
@pytest.mark.parametrize("machine", [NONE, H200])
def test_values_that_make_no_sense(flag, value, right, machine):
    assert plan.gpus_needed(experiment_of({flag: value})) == 1
    document = planned({flag: value}, machine=machine)
    assert document["reason"]["class"] == "bad-value"
    assert right in document["reason"]["message"]


def test_force_is_no_key_for_a_mistake_in_the_arguments():
    assert planned({"no-such": 1}, machine=H200, force="please")["status"] == "refused"


# --- draft checkpoints --------------------------------------------------------------------------


def draft_of(architecture="LlamaForCausalLMEagle3", *, reading=None, **changes):
    model = {**ARITHMETIC, "layers": 1, "vocab_size": 32_000, "draft_layers": None}
    found = format_of(model=model, weights_bytes=2_000_000_000, **changes)
    return plan.Draft(found | {"architecture": architecture}, reading or reading_of())


def flags_of(document):
    return {each["flag"]: each["value"] for each in document["flags"]}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("architecture", "algorithm"),
    [
        ("LlamaForCausalLMEagle3", "EAGLE3"),
        ("LlamaForCausalLMEagle", "EAGLE"),
        ("DeepseekV3ForCausalLMNextN", "EAGLE"),
        ("Qwen3ForCausalLM", "STANDALONE"),
    ],
)
def test_a_draft_checkpoint_is_handed_to_the_server(version, architecture, algorithm):
    document = planned(
        {}, engine=engine_of(version), machine=H200, draft="small", drafts=draft_of(architecture)
    )
    assert document["status"] == "ok"
    words = " ".join(document["argv"])
    assert f"--speculative-algorithm {algorithm}" in words
    assert "--speculative-draft-model-path {draft}" in words
    assert (document["draft"], document["draft_bytes"]) == ("small", 2_000_000_000)
    assert decided_by(document, "speculative-algorithm") == "table"


def test_the_users_algorithm_beats_what_the_draft_is():
    server = {"speculative-algorithm": "STANDALONE", "speculative-num-steps": 2}
    document = planned(server, machine=H200, draft="small", drafts=draft_of())
    assert flags_of(document)["speculative-algorithm"] == "STANDALONE"
    assert document["argv"].count("--speculative-algorithm") == 1


def test_the_checkpoint_itself_stands_for_its_own_draft_layers():
    own = NVFP4_DSV4 | {"model": {**DSV4_FLASH, "draft_layers": 1}}
    drafts = plan.Draft(own, reading_of())
    entry = {"format": own, "machine": PRO_6000, "draft": "weights", "drafts": drafts}
    document = planned(SEED, **entry)
    assert flags_of(document)["speculative-algorithm"] == "EAGLE"
    assert "speculation-untested" in classes(document)


def test_a_cpu_host_does_not_draft():
    document = planned({}, draft="small", drafts=draft_of())
    assert document["reason"]["class"] == "gpu-only-argument"
    assert "torch_native" in document["reason"]["message"]


def test_a_draft_takes_memory_of_its_own_and_of_the_cache():
    alone = planned({}, machine=H200)["fit"]
    document = planned({}, machine=H200, draft="small", drafts=draft_of())
    fit = document["fit"]
    assert fit["weights"]["draft"] == pytest.approx(2e9 / 2**30, abs=0.01)
    # four layers of the model, and one of the draft
    assert fit["kv_bytes_per_token"] == pytest.approx(alone["kv_bytes_per_token"] * 5 / 4)
    assert "speculation-running-requests" in {each["class"] for each in document["notes"]}


@pytest.mark.parametrize(
    ("server", "drafts", "version", "class_", "words"),
    [
        (
            {"speculative-algorithm": "NGRAM"},
            draft_of(),
            "0.5.23",
            "draft-mismatch",
            "NGRAM takes no draft checkpoint",
        ),
        (
            {},
            draft_of("QwenDSparkDraft"),
            JUNE,
            "draft-mismatch",
            "no speculative algorithm DSPARK",
        ),
        (
            {},
            draft_of(verdict="conflict", contradictions=["fp8, but bf16"]),
            "0.5.23",
            "format-conflict",
            "the draft checkpoint contradicts itself: fp8, but bf16",
        ),
        (
            {},
            draft_of(reading=reading_of("cannot-load", "no such model")),
            "0.5.23",
            "misread-format",
            "cannot load the draft checkpoint: no such model",
        ),
        (
            {"speculative-draft-model-path": "some/where"},
            None,
            "0.5.23",
            "reserved-flag",
            "name the checkpoint with `draft:`",
        ),
    ],
)
def test_drafts_that_can_not_be(server, drafts, version, class_, words):
    draft = {"draft": "small", "drafts": drafts} if drafts else {}
    document = planned(server, engine=engine_of(version), machine=H200, **draft)
    assert document["reason"]["class"] == class_
    assert words in document["reason"]["message"]


def test_a_whole_model_drafts_only_for_one_with_the_same_words():
    served = format_of(model={**ARITHMETIC, "vocab_size": 512})
    drafts = draft_of("Qwen3ForCausalLM")
    document = planned({}, format=served, machine=H200, draft="small", drafts=drafts)
    assert document["reason"]["class"] == "draft-mismatch"
    assert "the draft has 32000 words, the model 512" in document["reason"]["message"]


def test_a_draft_that_stopped_stops_the_plan():
    drafts = draft_of()
    broken = {"class": "x", "message": "no such repository", "evidence": [], "hint": None}
    stopped = plan.Draft(drafts.format | {"status": "failed", "reason": broken}, drafts.reading)
    document = planned({}, machine=H200, draft="small", drafts=stopped)
    assert document["status"] == "skipped"
    assert "no such repository" in document["reason"]["message"]


# --- traps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["tp", "dp", "pp-size", "ep"])
def test_parallelism_needs_gpus(flag):
    document = planned({flag: 2})
    assert document["reason"]["class"] == "gpu-only-argument"


@pytest.mark.parametrize(
    ("server", "machine", "class_"),
    [
        ({"kv-cache-dtype": "nvfp4"}, H200, "unsupported-kv-cache"),
        (
            {"attention-backend": "trtllm_mha", "kv-cache-dtype": "fp8_e4m3"},
            PRO_6000,
            "known-bad-backend",
        ),
        ({"attention-backend": "fa3"}, PRO_6000, "known-bad-backend"),
        ({"prefill-attention-backend": "fa3"}, B200, "known-bad-backend"),
        ({"attention-backend": "triton"}, NONE, "known-bad-backend"),
        ({"quantization": "nvfp4_online"}, H200, "unsupported-quantization"),
        (
            {"quantization": "fp8", "moe-runner-backend": "flashinfer_cutlass"},
            PRO_6000,
            "unsupported-quantization",
        ),
        ({"tp": 16}, H200, "too-few-gpus"),
        (
            {"kv-cache-dtype": "nvfp4"},
            {"gpus": {"count": 1, "name": "H100", "memory_gib": 80}},
            "unsupported-kv-cache",
        ),
    ],
)
def test_combinations_that_are_refused(server, machine, class_):
    document = planned(server, machine=machine)
    assert document["status"] == "refused"
    assert class_ in {document["reason"]["class"], *classes(document)}


@pytest.mark.parametrize(
    ("server", "entry", "class_"),
    [
        ({"speculative-algorithm": "EAGLE"}, {}, "speculation-untested"),
        ({"speculative-algorithm": "DSPARK"}, {}, "speculation-corrupts"),
        ({"ep": 4, "moe-runner-backend": "marlin"}, {}, "expert-parallel-marlin"),
        ({"chat-template": "x.jinja"}, {}, "chat-template-ignored"),
        ({"trust-remote-code": True}, {}, "foreign-code"),
        (
            {"dp": 4, "enable-dp-attention": True, "chunked-prefill-size": 4096},
            {},
            "chunked-prefill-divided",
        ),
        ({"dp": 4, "enable-dp-attention": True, "max-running-requests": 8}, {}, "requests-divided"),
    ],
)
def test_traps_are_warnings(server, entry, class_):
    document = planned({**SEED, **server}, format=NVFP4_DSV4, machine=PRO_6000, **entry)
    assert document["status"] == "ok"
    assert class_ in classes(document)
    assert class_ not in classes(planned(SEED, format=NVFP4_DSV4, machine=PRO_6000))


GLM = NVFP4_DSV4 | {
    "architecture": "GlmMoeDsaForCausalLM",
    "model": {**DSV4_FLASH, "kv_lora_rank": 512, "head_dim": 64},
}


def test_sparse_attention_on_sm120():
    """By itself the build takes kernels for SM100; 0.5.23 has others for GLM and an 8-bit cache."""
    document = planned(SEED, format=GLM, machine=PRO_6000)
    sparse = document["backend"]["sparse-attention"]
    assert (sparse["chosen"], sparse["format"]) == ("flashinfer_sparse_mla", "fp8")
    assert "--dsa-decode-backend flashinfer_sparse_mla" in " ".join(document["argv"])
    assert "--dsa-prefill-backend flashinfer_sparse_mla" in " ".join(document["argv"])
    early = planned(SEED, format=GLM, engine=engine_of("0.5.16"), machine=PRO_6000)
    assert early["reason"]["class"] == "known-bad-backend"
    assert "Unsupported architecture" in early["reason"]["message"]
    asked = {**SEED, "dsa-prefill-backend": "trtllm", "dsa-decode-backend": "trtllm"}
    assert planned(asked, format=GLM, machine=PRO_6000)["status"] == "refused"
    assert planned(asked, format=GLM, machine=B200)["status"] == "ok"


def test_sparse_attention_before_blackwell_is_left_to_the_build():
    document = planned({"tp": 4}, format=GLM | {"kv_cache": {"format": "fp8"}}, machine=H200)
    decode = document["backend"]["sparse-attention"]
    prefill = document["backend"]["sparse-attention:dsa-prefill-backend"]
    assert (decode["chosen"], prefill["chosen"]) == ("fa3", "flashmla_sparse")
    assert not any(word.startswith("--dsa-") for word in document["argv"])


def test_attention_that_the_build_chooses_in_unknown_ways_is_left_to_it():
    qwen = format_of() | {"architecture": "Qwen3NextForCausalLM"}
    document = planned(
        {}, format=qwen, engine=engine_of("0.5.16") | {"version": "0.5.20"}, machine=B200
    )
    assert document["backend"]["attention"]["chosen"] == "auto"
    assert not any("attention-backend" in word for word in document["argv"])


def test_attention_is_left_to_a_build_that_chooses_well():
    """And what is asked, chosen and known of it stands in the plan."""
    document = planned({}, machine=H200)
    attention = document["backend"]["attention"]
    assert (attention["chosen"], attention["known"]) == ("fa3", "works")
    assert attention["automatic"]["backend"] == "fa3"
    assert not any("attention-backend" in word for word in document["argv"])
    cpu = planned({})["backend"]["attention"]
    assert (cpu["chosen"], cpu["known"]) == ("intel_amx", "works")


def test_auto_is_an_answer_where_the_build_has_no_such_word():
    document = planned({"attention-backend": "auto"}, machine=H200)
    assert document["status"] == "ok"
    assert not any("attention-backend" in word for word in document["argv"])


def test_a_backend_for_half_of_attention_is_looked_at_too():
    server = {"decode-attention-backend": "trtllm_mha", "prefill-attention-backend": "fa3"}
    early = planned(server, engine=engine_of("0.5.16"), machine=H200)
    assert early["status"] == "ok"
    assert set(early["backend"]) == {
        "experts",
        "attention",
        "attention:prefill-attention-backend",
    }
    whole = planned({"attention-backend": "trtllm_mha"}, engine=engine_of("0.5.16"), machine=H200)
    assert "TRTLLM MHA backend for prefill" in whole["reason"]["message"]


def test_the_slow_attention_of_june():
    document = planned(SEED, format=NVFP4_DSV4, engine=engine_of(**WITH_PR), machine=PRO_6000)
    assert "slow-backend" in classes(document)
    assert document["backend"]["attention"]["known"] == "starts-but-slow"


def test_the_radix_cache_is_noted_where_it_is_on():
    assert [each["class"] for each in planned({})["notes"]] == ["radix-cache-on"]
    assert planned({"disable-radix-cache": True})["notes"] == []


def test_a_quantization_that_the_config_of_the_checkpoint_contradicts():
    server = {**SEED, "quantization": "modelopt_fp4"}
    june = engine_of(JUNE, pull_requests=(25820,))
    document = planned(server, format=NVFP4_DSV4, engine=june, machine=PRO_6000)
    assert document["reason"]["class"] == "unsupported-quantization"
    assert planned(server, format=NVFP4_DSV4, machine=PRO_6000)["status"] == "ok"


def test_a_gpu_of_another_maker_is_told():
    machine = hardware.fingerprint(NONE) | {"unsupported": ["AMD (ROCm)"]}
    given = {"format": format_of(), "reading": reading_of(), "engine": engine_of()}
    document = plan.plan(experiment_of(), **given, hardware=machine)
    (warning,) = [w for w in document["warnings"] if w["class"] == "unsupported-accelerator"]
    assert (
        "AMD (ROCm) is not supported and stays unused; supported are NVIDIA" in warning["message"]
    )


def test_gpus_without_nvlink():
    machine = hardware.fingerprint(PRO_6000)
    pairs = itertools.combinations(range(8), 2)
    machine["links"] = [
        {"gpus": list(pair), "path": "PCIe host bridge", "nvlink": False, "peer_access": True}
        for pair in pairs
    ]
    given = {
        "format": NVFP4_DSV4,
        "reading": reading_of(),
        "engine": engine_of(),
        "hardware": machine,
    }
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    document = plan.plan(experiment_of(SEED, env=env), **given)
    assert {"all-reduce-without-nvlink", "expandable-segments"} <= classes(document)
    quiet = plan.plan(experiment_of({**SEED, "disable-custom-all-reduce": True}), **given)
    assert not {"all-reduce-without-nvlink", "expandable-segments"} & classes(quiet)


@pytest.mark.parametrize("machine", [B200, PRO_6000])
def test_an_nvfp4_cache_runs_on_blackwell(machine):
    assert planned({"kv-cache-dtype": "nvfp4"}, machine=machine)["status"] == "ok"


def test_flashinfer_cutlass_passes_where_no_quantization_is_asked():
    server = {"moe-runner-backend": "flashinfer_cutlass"}
    fp8 = format_of("fp8-block", rest="fp8-block", group=[128, 128])
    assert planned(server, format=fp8, machine=PRO_6000)["status"] == "ok"
    asked = planned({**server, "quantization": "fp8"}, format=fp8, machine=PRO_6000)
    assert "Invalid quantization 'fp8'" in asked["reason"]["message"]


def test_what_a_quantization_that_is_asked_for_changes():
    document = planned(
        {"quantization": "modelopt_fp4"}, format=format_of("nvfp4", group=16), machine=PRO_6000
    )
    assert "other-automatic-choice" in {each["class"] for each in document["notes"]}
    online = planned({"quantization": "nvfp4_online"}, machine=PRO_6000)
    assert "unsupported-quantization" in classes(online)
    assert planned({"quantization": "nvfp4_online"}, machine=B200)["status"] == "ok"


def test_four_bit_activations_before_blackwell():
    """compressed-tensors serves NVFP4 W4A4 as W4A16 there, with a warning."""
    w4a4 = format_of("nvfp4", group=16, method="compressed-tensors")
    document = planned({}, format=w4a4, machine=H200)
    assert document["status"] == "ok"
    assert "served-otherwise" in {each["class"] for each in document["notes"]}
    assert "served-otherwise" not in {
        each["class"] for each in planned({}, format=w4a4, machine=B200)["notes"]
    }


CHANGES_RESULTS = [
    *("SGLANG_SM120_FLASHMLA_BACKEND", "SGLANG_SM120_TRITON_FLASHMLA", "SGLANG_DSV4_FP4_EXPERTS"),
    *("SGLANG_DSV4_FP4_DEQUANT", "SGLANG_FORCE_FP8_MARLIN", "SGLANG_ENABLE_JIT_DEEPGEMM"),
    *("SGLANG_DEFAULT_THINKING", "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", "CUDA_VISIBLE_DEVICES"),
    *("FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH", "TRTLLM_DISABLE_FP4_QUANT_FAST_MATH"),
    *("NCCL_P2P_LEVEL", "PYTORCH_CUDA_ALLOC_CONF"),
]


@pytest.mark.parametrize("name", CHANGES_RESULTS)
def test_each_variable_that_changes_results_is_known(name):
    assert plan.foreign_environment({name: "1", "PATH": "/bin"}) == {name: "1"}


def test_where_built_kernels_are_kept_changes_no_result():
    assert plan.foreign_environment({"SGLANG_DG_CACHE_DIR": "/x", "SGLANG_CACHE_DIR": "/y"}) == {}


def test_variables_that_change_results_are_found_in_an_environment():
    variables = {
        "SGLANG_FORCE_FP8_MARLIN": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOME": "/home/someone",
    }
    assert plan.foreign_environment(variables) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "SGLANG_FORCE_FP8_MARLIN": "1",
    }


# --- memory -------------------------------------------------------------------------------------


def test_the_study_does_not_fit_on_cards_of_48_gib():
    machine = {"gpus": {"count": 4, "name": "some card", "capability": "12.0", "memory_gib": 48}}
    document = planned(SEED, format=NVFP4_DSV4, machine=machine)
    assert document["reason"]["class"] == "does-not-fit"
    assert "mem-fraction-static 0.7 of 46.7 GiB is 32.7" in document["reason"]["message"]
    assert "mem-fraction-static" in document["reason"]["hint"]
    fits = planned(SEED, format=NVFP4_DSV4, machine=PRO_6000)
    assert fits["status"] == "ok"
    assert fits["fit"]["weights_gib"] == pytest.approx(39.4, abs=0.2)


def test_a_small_kv_cache_is_tight():
    machine = {"gpus": {"count": 4, "name": "some card", "capability": "12.0", "memory_gib": 48}}
    document = planned({**SEED, "mem-fraction-static": 0.86}, format=NVFP4_DSV4, machine=machine)
    assert document["status"] == "ok"
    assert "tight-memory" in classes(document)


# --- levels -------------------------------------------------------------------------------------

SWEEP = {"concurrency": [1, 8, 16], "input_tokens": 1024, "output_tokens": 1024}


def test_levels_above_the_graphs():
    document = planned({**SEED, "cuda-graph-max-bs-decode": 8}, format=NVFP4_DSV4, machine=PRO_6000)
    (warning,) = plan.sweep_warnings(document, SWEEP)
    assert warning["class"] == "level-above-graphs"
    assert "level 16 is above the largest batch with a CUDA graph (8)" in warning["message"]
    assert plan.sweep_warnings(document, {**SWEEP, "concurrency": [1, 8]}) == []


def test_levels_above_the_kv_cache_and_the_running_requests():
    server = {"max-total-tokens": 8192, "max-running-requests": 4}
    document = planned(server)
    told = {each["class"]: each["message"] for each in plan.sweep_warnings(document, SWEEP)}
    assert set(told) == {"level-above-kv-cache", "level-above-running-requests"}
    assert (
        "levels 8, 16 are above what the KV cache holds at once: 4 requests"
        in (told["level-above-kv-cache"])
    )
    assert plan.largest_concurrency(document, 2048) == 4
    assert plan.largest_concurrency(document, 4096) == 2


# --- cost ---------------------------------------------------------------------------------------


def test_the_cost_of_a_run():
    one = planned(SEED, format=NVFP4_DSV4, machine=PRO_6000, name="one", checkpoint="nvfp4")
    two = planned(SEED, format=NVFP4_DSV4, machine=PRO_6000, name="two", checkpoint="nvfp4")
    no = plan.screened(experiment_of(name="three"), "needs more")
    sweep = {"concurrency": [1, 8], "repeats": 3, "min_seconds": 60, "boots": 1}
    sweeps = dict.fromkeys(("one", "two", "three"), sweep) | {"one": {**sweep, "boots": 2}}
    took = {
        "results/experiments/two/server.json": 100.0,
        "results/experiments/two/probe.json": 4.0,
        "results/experiments/two/points/c1.json": 190.0,
        "results/experiments/two/points/c8.json": 200.0,
    }
    cost = plan.cost([one, two, no], sweeps, took=took)
    assert cost["fetch_bytes"] == 168_200_000_000
    assert cost["loads"] == 3
    first, second, third = cost["experiments"]
    assert (first["from"], second["from"], third["seconds"]) == (
        "estimated",
        "an earlier run",
        None,
    )
    assert second["fetch_bytes"] == 0
    # first: two boots, each estimated to be ready after load_s
    assert first["seconds"] == 15 + 2 * (first["load_s"] + 2 * (180 + 15))
    assert second["seconds"] == 100 + 4 + 190 + 200
    assert plan.cost([one], sweeps, here=["nvfp4"])["fetch_bytes"] == 0
    table = plan.cost_table(cost)
    assert "| two | ok | 0.0 GB | 100 s | 8.2 (an earlier run) |" in table
    assert "In all: 168.2 GB to fetch, 3 server loads" in table
    assert f"none left; {one['engine']} built for these plans" in table


def test_what_the_plans_say_stands_below_their_cost():
    good = planned({"max-running-requests": 4}, machine=H200, name="good")
    bad = planned({"tp": 3}, machine=H200, name="bad")
    sweep = {**SWEEP, "repeats": 1, "min_seconds": 1, "boots": 1}
    text = plan.remarks([good, bad], {"good": sweep, "bad": sweep})
    assert "- **bad** refused: 4 attention heads don't divide into 3" in text
    assert "- **good**: 4 requests of 2048 tokens run at once" in text
    assert "  - level-above-running-requests: levels 8, 16 are above" in text


def test_what_no_earlier_run_tells_is_estimated():
    one = planned({}, machine=H200)
    sweep = {"concurrency": [1, 8], "repeats": 1, "min_seconds": 10, "boots": 1}
    took = {"results/experiments/one/points/c1.json": 40.0}
    (row,) = plan.cost([one], {"one": sweep}, took=took, profiled=["one"])["experiments"]
    assert row["from"] == "an earlier run, in part"
    # a probe, the other level (10 s and 15 s), and a profile
    assert row["seconds"] == row["load_s"] + 15 + 40 + (10 + 15) + 15


def test_a_draft_is_fetched_too_and_once():
    entry = {"machine": H200, "draft": "small", "drafts": draft_of()}
    one = planned({}, name="one", **entry)
    two = planned({}, name="two", **entry)
    sweep = {"concurrency": [1], "repeats": 1, "min_seconds": 1, "boots": 1}
    cost = plan.cost([one, two], {"one": sweep, "two": sweep})
    assert [each["fetch_bytes"] for each in cost["experiments"]] == [2_014_717_376, 0]


def test_a_size_that_is_not_known_is_said():
    unknown = planned(SEED, format=NVFP4_DSV4 | {"weights_bytes": None}, machine=PRO_6000)
    sweep = {"concurrency": [1], "repeats": 1, "min_seconds": 1, "boots": 1}
    cost = plan.cost([unknown], {"one": sweep})
    assert cost["unknown_sizes"] == ["weights"]
    assert "the size of weights is not known" in plan.cost_table(cost)
