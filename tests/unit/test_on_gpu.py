"""What the scripts for GPUs compute: shapes of checkpoints, divergences, the page of a run."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ON_GPU = Path(__file__).parents[2] / "benchmarks/on_gpu"


@pytest.fixture(scope="module", autouse=True)
def on_path():
    sys.path.insert(0, str(ON_GPU))
    yield
    sys.path.remove(str(ON_GPU))


@pytest.mark.parametrize(
    ("name", "parameters"),
    # As the hub counts them in the checkpoints' headers.
    [("Qwen3-30B-A3B", 30_532_122_624), ("Llama-3.1-8B", 8_030_261_248)],
)
def test_shapes_have_the_parameters_of_the_published_checkpoints(name, parameters):
    import shapes

    config = yaml.safe_load((ON_GPU / "shapes.yaml").read_text())[name]
    assert sum(math.prod(shape) for _, _, shape in shapes.tensors(config)) == parameters


def test_a_shape_is_a_checkpoint_whose_data_is_a_hole(tmp_path):
    import shapes

    config = yaml.safe_load((ON_GPU / "shapes.yaml").read_text())["Llama-3.1-70B-FP8"]
    size = shapes.write(tmp_path, config)
    file = tmp_path / "model.safetensors"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    assert file.stat().st_size == 8 + length + size
    assert header["model.layers.0.mlp.down_proj.weight"]["dtype"] == "F8_E4M3"
    assert header["lm_head.weight"]["dtype"] == "BF16"
    ends = sorted(each["data_offsets"] for name, each in header.items() if name[0] != "_")
    assert all(one[1] == two[0] for one, two in pairwise(ends))
    assert file.stat().st_blocks * 512 < 1 << 20


def test_divergence_is_zero_for_equal_and_known_for_two_tokens():
    import likeness

    assert likeness.divergence({1: 0.75, 2: 0.25}, {1: 0.75, 2: 0.25}) == 0
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert likeness.divergence({1: 0.75, 2: 0.25}, {1: 0.5, 2: 0.5}) == pytest.approx(expected)


def test_a_token_that_the_other_does_not_list_counts_as_unlikely():
    import likeness

    assert likeness.divergence({1: 1.0}, {2: 1.0}) > 10


def test_comparison_counts_where_both_say_the_same():
    import likeness

    one = [[{1: 0.9, 2: 0.1}, {3: 1.0}]]
    two = [[{1: 0.6, 2: 0.4}, {4: 1.0}]]
    told = likeness.compared(one, two)
    assert told["top1_agreement"] == 0.5
    assert told["positions"] == 2
    assert told["kl_max"] > told["kl_mean"] > 0


def row(outcome: str, known: str | None, dense: str | None = None, **more) -> dict:
    expected = {"experts": {"format": "nvfp4", "asked": "marlin", "known": known}}
    if dense:
        expected["dense"] = {"format": "fp8-block", "asked": "auto", "known": dense}
    return {"outcome": outcome, "expected": expected, **more}


@pytest.mark.parametrize(
    ("outcome", "experts", "dense", "agrees"),
    [
        ("starts and is right", "recommended", None, "yes"),
        ("refuses", "refuses", None, "yes"),
        ("starts but is wrong", "starts-but-wrong", "works", "yes"),
        ("starts and is right", "refuses", None, "no"),
        ("refuses", "works", None, "no"),
        ("refuses", "works", "refuses", "yes"),
        ("starts and is right", "unknown", None, "unknown before"),
        ("not run", "works", None, "not run"),
    ],
)
def test_the_table_is_held_against_what_happened(outcome, experts, dense, agrees):
    import verified

    assert verified.row_of("rows-x", row(outcome, experts, dense))["agrees"] == agrees


def test_a_corrupted_scale_is_seen_by_divergence_or_by_questions():
    import verified

    def measured(outcome, kl):
        return row(outcome, "works", against_reference={"kl_mean": kl, "top1_agreement": 0.9})

    found = [
        verified.row_of(name, each)
        for name, each in {
            "rows-nvfp4--marlin": measured("starts and is right", 0.001),
            "rows-nvfp4--marlin@nvfp4-layer": measured("starts but is wrong", 0.5),
            "rows-nvfp4--marlin@nvfp4-expert": measured("starts and is right", 0.002),
        }.items()
    ]
    layer, expert = verified.power(found)
    assert (layer["by_divergence"], layer["by_questions"]) == (True, True)
    assert (expert["by_divergence"], expert["by_questions"]) == (False, False)
    assert expert["times"] == pytest.approx(2)


def test_rows_come_in_the_order_that_is_asked_for():
    import rows

    assert rows.ordered(["a", "b", "c"], ["c", "c@broken"]) == ["c", "c@broken", "a", "b"]
    with pytest.raises(SystemExit, match="no plan of d"):
        rows.ordered(["a"], ["d"])


def test_a_forced_plan_leaves_to_the_build_what_was_asked_to_be_automatic():
    import rows

    flags = [
        {"flag": "tp-size", "value": 2, "by": "user", "why": "config"},
        {"flag": "moe-runner-backend", "value": "marlin", "by": "table", "why": "known"},
    ]
    argv = ["-m", "x", "--tp-size", "2", "--moe-runner-backend", "marlin", "--enable-metrics"]
    plan = rows.untouched({"flags": flags, "argv": argv})
    assert plan["argv"] == ["-m", "x", "--tp-size", "2", "--enable-metrics"]
    assert [flag["flag"] for flag in plan["flags"]] == ["tp-size"]


def test_what_was_not_run_says_so(tmp_path):
    import verified

    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    told = verified.gathered(one, two, tmp_path / "scratch")
    page = verified.page(told)
    assert page.count("not run") >= 6
    assert "None" not in page
