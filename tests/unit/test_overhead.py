"""What the workflow adds to a sweep, as it was measured last."""

from __future__ import annotations

import json
import sys

import yaml

from bringup.paths import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))

from overhead import PAGE


def test_a_sweep_of_default_length_takes_at_most_a_twentieth_longer_than_its_load_alone() -> None:
    found = json.loads((PROJECT / "docs/overhead.json").read_text())
    schema = yaml.safe_load((PROJECT / "workflow/schemas/config.schema.yaml").read_text())
    sweep = schema["$defs"]["sweep"]["properties"]
    for name in ("min_seconds", "repeats"):
        assert found[name] == sweep[name]["default"]
    assert found["workflow_s"] / found["by_hand_s"] <= 1.05
    assert found["ratio_at_equal_load"] <= 1.05
    assert found["by_hand_load_s"] <= found["by_hand_s"] <= found["workflow_s"]
    assert (PROJECT / "docs/overhead.md").read_text() == PAGE.format(**found)
