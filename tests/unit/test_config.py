"""What a user may write in config/experiments.yaml, and what they are told when it is wrong."""

from pathlib import Path

import pytest

from bringup.config import ConfigError, load
from bringup.config.merge import merged

PROJECT = Path(__file__).parents[2]

GOOD = """\
defaults:
  server: {tp: 2, mem-fraction-static: 0.7}
  sweep: {concurrency: [1, 8]}
checkpoints:
  small: {path: models/small}
  big: {repo: owner/big, revision: main}
engines:
  stock: {version: 0.5.23}
  old: {version: 0.5.13.post1}
experiments:
  one:
    study: first
    checkpoint: small
    engine: stock
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The files that the config of these tests names."""
    (tmp_path / "models/small").mkdir(parents=True)
    (tmp_path / "resources/probes").mkdir(parents=True)
    (tmp_path / "resources/probes/arithmetic.yaml").touch()
    monkeypatch.chdir(tmp_path)


def load_text(tmp_path, text):
    path = tmp_path / "experiments.yaml"
    path.write_text(text)
    return load(path, backends=lambda hardware: ["triton", "marlin"])


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]


def test_defaults_are_merged_key_by_key_and_lists_replace(tmp_path):
    text = GOOD + "    server: {tp: 4}\n    sweep: {concurrency: [16]}\n"
    entry = load_text(tmp_path, text).experiments["one"]
    assert entry["server"] == {"tp": 4, "mem-fraction-static": 0.7, "startup_max_s": 7200}
    assert entry["sweep"]["concurrency"] == [16]
    assert entry["sweep"]["output_tokens"] == 1024


def test_null_deletes_a_default(tmp_path):
    text = GOOD + "    server: {mem-fraction-static: null}\n    sweep: {concurrency: null}\n"
    entry = load_text(tmp_path, text).experiments["one"]
    assert "mem-fraction-static" not in entry["server"]
    assert entry["sweep"]["concurrency"] == [1, 8, 16]  # back to the schema's own default


def test_merging_is_deep():
    assert merged({"a": {"b": 1, "c": 2}, "l": [1]}, {"a": {"b": 3}, "l": [2, 3]}) == {
        "a": {"b": 3, "c": 2},
        "l": [2, 3],
    }


def test_backend_is_short_for_the_moe_runner(tmp_path):
    entry = load_text(tmp_path, GOOD + "    server: {backend: marlin}\n").experiments["one"]
    assert entry["server"]["moe-runner-backend"] == "marlin"
    assert "backend" not in entry["server"]


def test_a_matrix_becomes_experiments_named_after_its_values(tmp_path):
    text = GOOD + (
        "    matrix: {engine: [old, stock], backend: [marlin, triton]}\n"
        "    exclude: [{engine: stock, backend: triton}]\n"
    )
    experiments = load_text(tmp_path, text).experiments
    assert list(experiments) == ["one--old--marlin", "one--old--triton", "one--stock--marlin"]
    chosen = experiments["one--old--triton"]
    assert (chosen["engine"], chosen["server"]["moe-runner-backend"]) == ("old", "triton")


def test_backend_all_is_the_whole_field_of_this_machine(tmp_path):
    experiments = load_text(tmp_path, GOOD + "    matrix: {backend: all}\n").experiments
    assert list(experiments) == ["one--triton", "one--marlin"]


def test_a_secret_is_named_not_written(tmp_path):
    text = (
        GOOD
        + "    server: {api-key: {secret: MY_KEY}}\n    env: {HF_TOKEN: {secret: MINE}, N: 1}\n"
    )
    entry = load_text(tmp_path, text).experiments["one"]
    assert entry["server"]["api-key"] == "{secret:MY_KEY}"
    assert entry["env"] == {"HF_TOKEN": "{secret:MINE}", "N": "1"}


def test_a_tilde_means_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = (
        GOOD.replace("models/small", "~/models/small") + "    server: {chat-template: ~/t.jinja}\n"
    )
    config = load_text(tmp_path, text)
    assert config.checkpoints["small"]["path"] == f"{tmp_path}/models/small"
    assert config.experiments["one"]["server"]["chat-template"] == f"{tmp_path}/t.jinja"


def test_order_of_keys_does_not_show(tmp_path):
    one = load_text(tmp_path, GOOD + "    env: {A: 1, B: 2}\n").experiments["one"]
    two = load_text(tmp_path, GOOD + "    env: {B: 2, A: 1}\n").experiments["one"]
    assert repr(one) == repr(two)


def test_a_study_narrows_the_config(tmp_path):
    config = load_text(tmp_path, GOOD + "  two: {checkpoint: small, engine: stock}\n")
    assert list(config.only("first").experiments) == ["one"]
    assert config.studies() == ["first", "main"]
    with pytest.raises(ConfigError, match=r"study=frist: no experiment .* did you mean 'first'"):
        config.only("frist")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        # unknown and misspelt keys
        ("    sever: {tp: 1}", "15: experiments.one.sever: unknown key; did you mean 'server'?"),
        ("    sweep: {repeat: 2}", "15: experiments.one.sweep.repeat: unknown key; did you mean"),
        # wrong types
        ("    sweep: {repeats: many}", "15: experiments.one.sweep.repeats: 'many' is not right"),
        ("    server: [tp, 4]", "15: experiments.one.server: is a list; right: a mapping"),
        ("    probes: {when_wrong: stop}", "15: experiments.one.probes.when_wrong: 'stop' is not"),
        # references
        ("    baseline: tow", "15: experiments.one.baseline: there is no experiment 'tow'"),
        ("    baseline: one", "15: experiments.one.baseline: is the experiment itself"),
        (
            "    accuracy: {python: no/such, tasks: {a: {metric: m, least: 0.5}}}",
            "15: experiments.one.accuracy.python: no file no/such; make an environment",
        ),
        ("    accuracy: {python: x, tasks: {}}", "15: experiments.one.accuracy.tasks: "),
        ("    reference: tow", "15: experiments.one.reference: there is no experiment 'tow'"),
        ("    reference: one", "15: experiments.one.reference: is the experiment itself"),
        ("    reference: no/such.json", "15: experiments.one.reference: no file no/such.json"),
        ("    draft: bg", "15: experiments.one.draft: there is no checkpoint 'bg'; did you mean"),
        # numbers
        ("    sweep: {concurrency: [1, 0]}", "15: experiments.one.sweep.concurrency.1: 0 is not"),
        ("    sweep: {concurrency: [-8]}", "15: experiments.one.sweep.concurrency.0: -8 is not"),
        ("    sweep: {concurrency: [8, 8]}", "15: experiments.one.sweep.concurrency: is not right"),
        ("    sweep: {concurrency: []}", "15: experiments.one.sweep.concurrency: is not right"),
        ("    sweep: {min_seconds: 1e3}", "15: experiments.one.sweep.min_seconds: YAML reads 1e3"),
        ("    server: {x: 1e-4}", "15: experiments.one.server.x: YAML reads 1e-4 as text; write"),
        # names and flags
        ("  a/b: {checkpoint: small, engine: stock}", "experiments: 'a/b' can't be a name here"),
        ("  ..: {checkpoint: small, engine: stock}", "experiments: '..' can't be a name here"),
        ("  -x: {checkpoint: small, engine: stock}", "experiments: '-x' can't be a name here"),
        ("  a--b: {checkpoint: small, engine: stock}", "experiments: 'a--b' can't be a name here"),
        ("    server: {--tp: 4}", "15: experiments.one.server: '--tp' can't be a name here; right"),
        ("    server: {mem_fraction_static: 1}", "experiments.one.server: 'mem_fraction_static'"),
        # YAML's surprises
        ("  on: {checkpoint: small}", "15: experiments: YAML reads the key on as True; write 'on'"),
        ("  1.0: {checkpoint: small}", "15: experiments: YAML reads the key 1.0 as 1.0; write '1"),
        ("    engine: old", "15: experiments.one: 'engine' stands twice (first in line 14)"),
        ("\ttabbed: 1", "15: a tab in the indentation; YAML wants spaces"),
        ("    env: {A: 2020-01-01}", "15: experiments.one.env.A: YAML reads 2020-01-01 as a date"),
        ("    env: {A: [1", "not YAML:"),
        # matrices
        ("    matrix: {engine: all}", "15: experiments.one.matrix.engine: all is for backend"),
        (
            "    matrix: {engine: [old, stokc]}",
            "experiments.one.engine: there is no engine 'stokc'",
        ),
        ("    matrix: {engine: [a/b]}", "'a/b' can't be part of an experiment's name"),
        (
            "    matrix: {engine: [old]}\n    exclude: [{engine: odl}]",
            "16: experiments.one.exclude.0: leaves out engine: odl, which the matrix doesn't have",
        ),
        (
            "    matrix: {engine: [old]}\n    exclude: [{engine: old}]",
            "16: experiments.one.exclude: leaves out every combination",
        ),
        (
            "    server: {backend: marlin, moe-runner-backend: triton}",
            "15: experiments.one.server.backend: is short for moe-runner-backend",
        ),
        (
            "    probes: {suites: [aritmetic]}",
            "15: experiments.one.probes.suites: no file resources",
        ),
        (
            "    env: {HF_TOKEN: abc}",
            "15: experiments.one.env.HF_TOKEN: a secret doesn't belong here",
        ),
        ("    server: {api-key: abc}", "right: {secret: API_KEY}, and export API_KEY"),
        ("    force: true", "15: experiments.one.force: True is not right here; right: a reason"),
        ("  two: {engine: stock}", "15: experiments.two: lacks checkpoint"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_line_and_key(tmp_path, change, line):
    found = problems(tmp_path, GOOD + change + "\n")
    assert len(found) == 1, found
    assert found[0].startswith("experiments.yaml:")
    assert line in found[0]
    assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "experiments.yaml:1: is empty"),
        ("- a\n", "experiments.yaml:1: must be a mapping"),
        ("experiments: {}\n", "experiments.yaml:1: lacks checkpoints, engines"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, text, line):
    assert any(line in problem for problem in problems(tmp_path, text))


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("{repo: owner/x, path: y}", "exactly one of repo: (a hub repository) and path:"),
        ("{revision: main}", "exactly one of repo: (a hub repository) and path:"),
        ("{path: x, revision: main}", "revision goes with repo only"),
        ("{repo: no-owner}", "right: a hub repository, owner/name"),
    ],
)
def test_a_checkpoint_has_one_source(tmp_path, entry, line):
    found = problems(tmp_path, GOOD.replace("{path: models/small}", entry))
    assert any(line in problem for problem in found), found


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("models/small", "models/smal", ":5: checkpoints.small.path: no folder models/smal"),
        (
            "{version: 0.5.23}",
            "{version: 0.5.23, patches: [{file: x.patch}]}",
            ":8: engines.stock.patches.0.file: no file x.patch",
        ),
    ],
)
def test_a_file_that_is_not_there(tmp_path, old, new, line):
    assert problems(tmp_path, GOOD.replace(old, new)) == [f"experiments.yaml{line}"]


def test_every_problem_is_told_at_once(tmp_path):
    found = problems(tmp_path, GOOD + "    sever: {}\n    force: 1\n")
    assert len(found) == 2


def test_the_example_config_is_sound(monkeypatch):
    monkeypatch.chdir(PROJECT)
    config = load(
        PROJECT / "config/experiments.yaml",
        backends=lambda hardware: ["marlin"],
        made=[f"resources/arithmetic-moe/{form}" for form in ("nvfp4", "mixed", "fp8", "int4")],
    )
    assert config.studies() == ["arithmetic", "dsv4-flash"]
    assert config.experiments["dsv4-nvfp4--june-pr25820--marlin"]["requires"]["gpus"] == 4
