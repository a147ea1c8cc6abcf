"""Artefacts, redaction, portable paths, job logs and import tracking: what all stages stand on."""

import json
import sys
from pathlib import Path

import pytest

from bringup import artifact, imports, joblog, paths, redact

PROJECT = Path(__file__).parents[2]


def test_a_document_is_written_whole_and_read_back(tmp_path):
    document = artifact.document("plan/1", name="x", value=[1, None])
    artifact.write(tmp_path / "deep" / "plan.json", document)
    assert artifact.read(tmp_path / "deep" / "plan.json") == document
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["plan.json"]


def test_a_number_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        artifact.write(tmp_path / "x.json", artifact.document("point/1", tok_s=float("nan")))
    assert not list(tmp_path.glob("*.json"))


def test_what_is_no_document_is_named(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"x\.json: holds a list, not an object"):
        artifact.read(tmp_path / "x.json")


def test_a_skipped_stage_names_the_first_cause():
    refused = artifact.document(
        "plan/1", "refused", artifact.reason("needs-gpu", "NVFP4 needs a GPU")
    )
    weights = artifact.skipped("weights/1", refused)
    server = artifact.skipped("server/1", weights)
    assert server["reason"]["message"] == "plan refused: NVFP4 needs a GPU"
    assert server["reason"]["class"] == "needs-gpu"
    assert artifact.stopping(artifact.document("a/1"), server) is server
    assert artifact.stopping(artifact.document("a/1"), artifact.document("b/1", "wrong")) is None


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        (["--api-key", "abc", "--tp", "4"], ["--api-key", redact.HIDDEN, "--tp", "4"]),
        ("serve --api-key=s3cr3t --tp 4", f"serve --api-key={redact.HIDDEN} --tp 4"),
        ({"HF_TOKEN": "x", "tokenizer": "y"}, {"HF_TOKEN": redact.HIDDEN, "tokenizer": "y"}),
        ("token hf_" + "a" * 34 + ".", f"token {redact.HIDDEN}."),
        ("https://me:pw@host/x", f"https://{redact.HIDDEN}@host/x"),
        ({"env": {"HF_TOKEN": "{secret:MINE}"}}, {"env": {"HF_TOKEN": "{secret:MINE}"}}),
        ({"max_total_num_tokens": 5}, {"max_total_num_tokens": 5}),
        (["--max-total-tokens", "8192"], ["--max-total-tokens", "8192"]),
        ("--skip-tokenizer-init --input-tokens 64", "--skip-tokenizer-init --input-tokens 64"),
    ],
)
def test_secrets_are_hidden_and_nothing_else(value, clean):
    assert redact.redacted(value) == clean


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery")
    redact._secret_values.cache_clear()
    try:
        assert redact.redacted_text("said correct-horse-battery") == f"said {redact.HIDDEN}"
    finally:
        redact._secret_values.cache_clear()


def test_a_reference_to_a_secret_is_followed_where_it_is_used(monkeypatch):
    monkeypatch.setenv("MINE", "s3cr3t")
    assert redact.revealed("{secret:MINE}") == "s3cr3t"
    monkeypatch.delenv("MINE")
    with pytest.raises(OSError, match="takes a secret from MINE, which is not set"):
        redact.revealed("{secret:MINE}")


def test_paths_in_documents_are_the_same_on_every_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "elsewhere"))
    assert paths.portable(tmp_path / "elsewhere/envs/x") == "{cache}/envs/x"
    assert paths.portable(tmp_path / "results/a") == "results/a"
    assert paths.portable(PROJECT / "resources") == "{project}/resources"
    assert paths.portable("/opt/venv/bin/python") == "/opt/venv/bin/python"
    for each in ("{cache}/envs/x", "results/a", "{project}/resources", "/opt/x"):
        assert paths.portable(paths.actual(each)) == each


def test_a_failing_job_says_one_line_and_logs_the_rest(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    with pytest.raises(SystemExit), joblog.logged(tmp_path / "logs" / "weights.log"):
        print("fetching with hf_" + "b" * 34)
        raise OSError("/home/alice/hub: no space left: needs 157 GiB, 80 GiB free")
    told = "weights: /home/alice/hub: no space left: needs 157 GiB, 80 GiB free\n"
    assert capsys.readouterr().err == told
    log = (tmp_path / "logs" / "weights.log").read_text()
    assert "Traceback" in log
    assert "OSError: {home}/hub: no space" in log
    assert "alice" not in log
    assert "hf_b" not in log


def test_a_program_of_a_job_writes_to_its_log(tmp_path, capsys):
    program = tmp_path / "make.py"
    program.write_text("print('working'); raise SystemExit('no torch here')")
    with pytest.raises(SystemExit), joblog.logged(tmp_path / "quantize.log"):
        joblog.run([sys.executable, program])
    assert "working" in (tmp_path / "quantize.log").read_text()
    assert capsys.readouterr().err.endswith("make.py ended with 1: no torch here\n")


def test_imports_are_followed_through_modules_and_packages(tmp_path):
    script = tmp_path / "stage.py"
    script.write_text("from bringup import artifact\nfrom bringup.config import load\n")
    found = imports.fingerprints(script)
    assert set(found) == {
        "artifact",
        "config",
        "redact",  # through artifact
        "paths",  # through config
    }
    assert all(len(each) == 8 for each in found.values())


def test_a_fingerprint_goes_by_content_and_tables_count(tmp_path, monkeypatch):
    package = tmp_path / "bringup"
    (package / "routing").mkdir(parents=True)
    (package / "routing/__init__.py").write_text("")
    (package / "routing/table.yaml").write_text("rows: []")
    monkeypatch.setattr(imports, "PACKAGE", package)
    script = tmp_path / "stage.py"
    script.write_text("from bringup import routing\n")

    def fingerprint():
        for cached in (imports._needs, imports._fingerprint, imports._files):
            cached.cache_clear()
        return imports.fingerprints(script)["routing"]

    try:
        before = fingerprint()
        (package / "routing/table.yaml").touch()
        assert fingerprint() == before
        (package / "routing/table.yaml").write_text("rows: [1]")
        assert fingerprint() != before
    finally:
        monkeypatch.undo()
        fingerprint()


@pytest.mark.parametrize("script", sorted((PROJECT / "workflow/scripts").glob("*.py")), ids=str)
def test_scripts_are_importable_and_thin(script):
    text = script.read_text()
    compile(text, str(script), "exec")
    assert 'if __name__ == "__main__":' in text
    assert text.startswith('"""Stage '), "its first line says which stage it is"


def test_the_library_knows_no_snakemake():
    for path in imports.PACKAGE.rglob("*.py"):
        assert "import snakemake" not in path.read_text()
        assert "from snakemake" not in path.read_text()


def test_json_is_the_same_bytes_for_the_same_content(tmp_path):
    for name in ("a", "b"):
        artifact.write(tmp_path / name, artifact.document("x/1", value={"k": 1}))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "a").read_text())["status"] == "ok"
