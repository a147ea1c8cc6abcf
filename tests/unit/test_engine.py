"""Engines: what their documents say and prove, with a small package in SGLang's place."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from upstream_repository import Upstream

from bringup import artifact, engine, paths, resident
from bringup.engine import base, environment, inside, sources, upstream, worker
from documents import checked

PARSERS = Path(__file__).with_name("parsers")

PATCH = """--- a/python/sglang/launch_server.py
+++ b/python/sglang/launch_server.py
@@ -1,3 +1,3 @@
 print("one")
-print("two")
+print("two, patched")
 print("three")
"""


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return fake_engine.make(tmp_path_factory.mktemp("engine") / "venv")


def built(python: Path, tmp_path: Path, *patches: dict[str, Any], cuda: bool = True) -> Any:
    entry = {"python": str(python), "patches": list(patches)}
    document = engine.build(entry, engine_name="mine", cuda=cuda, log=tmp_path / "patches.log")
    checked(document)
    return document


def patch_file(tmp_path: Path, text: str = PATCH) -> dict[str, Any]:
    (tmp_path / "x.patch").write_text(text)
    return {"file": "x.patch"}


def test_an_interpreter_as_it_is(python, tmp_path):
    document = built(python, tmp_path)
    assert document["status"] == "ok"
    assert document["base"] == {"python": str(python)}
    assert document["version"] == "0.5.23"
    assert document["choices"]["moe-runner-backend"] == ["auto", "marlin", "triton"]
    assert {"tp", "tensor-parallel-size", "model-path"} <= set(document["flags"])
    assert document["pythonpath"] == []
    assert document["packages"]["sglang"] == "0.5.23"
    assert document["torch_cuda"] is None, "it has no torch"
    assert document["renamed"] == {"cuda-graph-max-bs": "cuda-graph-max-bs-decode"}
    assert document["removed"]["torchao-config"] is None


def test_without_cuda_the_stand_in_is_on_the_path(python, tmp_path):
    document = built(python, tmp_path, cuda=False)
    assert document["stand_in"] is True
    assert [paths.actual(each) for each in document["pythonpath"]] == [environment.STAND_IN]


def test_an_engine_for_another_machines_gpus_can_be_asked_here(python, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "has_cuda", lambda: False)
    document = built(python, tmp_path, cuda=True)
    assert document["stand_in"] is False
    assert document["pythonpath"] == []
    env = worker.process(document).env
    assert env["PYTHONPATH"] == str(environment.STAND_IN)
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    assert worker.process(document).env["PYTHONPATH"] is None


def test_what_was_patched_is_what_is_imported(python, tmp_path):
    plain = built(python, tmp_path)
    document = built(python, tmp_path, patch_file(tmp_path))
    assert document["status"] == "ok"
    (patch,) = document["patches"]
    assert patch["outcome"] == "applied"
    assert patch["files"] == ["python/sglang/launch_server.py"]
    assert patch["hunks"] == 1
    assert patch["marker"] == {"file": "launch_server.py", "text": 'print("two, patched")'}
    (overlay,) = document["pythonpath"]
    assert document["file"] == f"{overlay}/sglang/__init__.py"
    assert document["tree"] != plain["tree"]
    assert document["freeze"] == plain["freeze"]
    installed = environment.package(python) / "launch_server.py"
    assert installed.read_text() == fake_engine.FILES["launch_server.py"]


def test_the_same_bytes_again_also_from_nothing(python, tmp_path):
    first = built(python, tmp_path, patch_file(tmp_path))
    artifact.write(tmp_path / "1.json", first)
    artifact.write(tmp_path / "2.json", built(python, tmp_path, patch_file(tmp_path)))
    for overlay in (tmp_path / "cache/overlays").iterdir():
        overlay.rename(tmp_path / f"old-{overlay.name}")
    artifact.write(tmp_path / "3.json", built(python, tmp_path, patch_file(tmp_path)))
    texts = {(tmp_path / f"{n}.json").read_bytes() for n in (1, 2, 3)}
    assert len(texts) == 1


def test_a_failed_patch_fails_the_engine_with_its_reason(python, tmp_path):
    bad = PATCH.replace('"one"', '"uno"').replace('-print("two")', '-print("dos")')
    document = built(python, tmp_path, patch_file(tmp_path, bad))
    assert document["status"] == "failed"
    assert document["reason"]["class"] == "patch-does-not-apply"
    assert "x.patch" in document["reason"]["message"]
    assert document["version"] is None
    assert document["pythonpath"] == []


def test_a_patch_that_breaks_the_import_is_told(python, tmp_path):
    broken = """--- a/python/sglang/__init__.py
+++ b/python/sglang/__init__.py
@@ -1 +1,2 @@
 __version__ = "0.5.23"
+import no_such_module_at_all
"""
    document = built(python, tmp_path, patch_file(tmp_path, broken))
    assert document["status"] == "failed"
    assert document["reason"]["class"] == "engine-not-importable"
    assert "no_such_module_at_all" in document["reason"]["message"]


def test_skipped_files_are_listed(python, tmp_path):
    more = "--- a/docs/x.md\n+++ b/docs/x.md\n@@ -1 +1 @@\n-a\n+b\n"
    document = built(python, tmp_path, patch_file(tmp_path, PATCH + more))
    (patch,) = document["patches"]
    assert patch["outcome"] == "applied"
    assert patch["skipped"] == [{"file": "docs/x.md", "is": "documentation"}]


def test_patches_go_on_in_order(python, tmp_path):
    second = PATCH.replace('print("two")', 'print("two, patched")').replace(
        '+print("two, patched")', '+print("two, twice patched")'
    )
    (tmp_path / "second.patch").write_text(second)
    document = built(python, tmp_path, patch_file(tmp_path), {"file": "second.patch"})
    assert [patch["outcome"] for patch in document["patches"]] == ["applied", "applied"]
    backwards = built(python, tmp_path, {"file": "second.patch"}, patch_file(tmp_path))
    assert backwards["status"] == "failed"
    assert len(backwards["patches"]) == 1, "nothing is tried after the first failure"


@pytest.mark.parametrize(
    ("python", "said"),
    [("/no/such/python", "no such interpreter"), ("/", "no such interpreter")],
)
def test_a_wrong_interpreter_is_one_clear_line(tmp_path, python, said):
    with pytest.raises(environment.EnvironmentUnusableError, match=said) as error:
        built(Path(python), tmp_path)
    assert "\n" not in str(error.value)


def test_an_interpreter_without_sglang(tmp_path):
    with pytest.raises(environment.EnvironmentUnusableError, match="no package sglang"):
        built(Path(os.path.realpath("/proc/self/exe")), tmp_path)


def test_no_network_and_no_copy_fails_the_job_not_the_engine(python, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "HOST", (tmp_path / "nowhere").as_uri())
    with pytest.raises(ConnectionError, match="PR #5"):
        built(python, tmp_path, {"pr": 5})


def ask(document: Any, log: Path, **request: Any) -> dict[str, Any]:
    return worker.ask(document, request, log=log)


def test_one_process_answers_all_and_keeps_output_apart(python, tmp_path):
    document = built(python, tmp_path)
    bench: dict[str, Any] = {"command": "bench", "output": str(tmp_path / "records.json")}
    assert ask(document, tmp_path / "warm.log", command="warm") == {"ok": True}
    good = ask(document, tmp_path / "good.log", **bench, argv=["--num-prompts", "3"])
    bad = ask(document, tmp_path / "bad.log", **bench, argv=["--fail"])
    assert good == {"ok": True}
    assert (tmp_path / "good.log").read_text() == "benchmark of ['--num-prompts', '3']\n"
    assert len(json.loads((tmp_path / "records.json").read_text())["records"]) == 1
    assert bad["ok"] is False
    assert "SystemExit: 3" in bad["error"]
    assert bad["output"][0] == "benchmark of ['--fail']"
    assert len(list((tmp_path / "run").iterdir())) == 1, "one resident process"


def test_engines_that_are_the_same_build_share_a_process(python, tmp_path):
    one = built(python, tmp_path)
    other = {**one, "engine": "another name"}
    ask(other, tmp_path / "x.log", command="warm")
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_an_edited_program_is_another_process(python, tmp_path, monkeypatch):
    document = built(python, tmp_path)
    before = worker.process(document).key
    for part, where in (("PROGRAM", worker), ("LOAD_CLIENT", inside)):
        edited = tmp_path / "edited.py"
        edited.write_text(f"{getattr(where, part).read_text()}# edited\n")
        with monkeypatch.context() as patch:
            patch.setattr(where, part, edited)
            assert worker.process(document).key != before
    assert worker.process(document).key == before


def test_a_client_that_goes_away_ends_its_benchmark(python, tmp_path):
    document = built(python, tmp_path)
    log = tmp_path / "bench.log"
    (home,) = (tmp_path / "run").iterdir()
    request = {"command": "bench", "argv": ["--hang"], "output": "x.json", "log": str(log)}
    with resident.running(worker.process(document), log=tmp_path / "x.log", idle_s=60):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(home / "socket"))
        client.sendall(json.dumps(request).encode() + b"\n")
        pid = int(waited(lambda: log.read_text().split("pid ")[1].split()[0]))
        client.close()
        waited(lambda: gone(pid))


def waited(look):
    deadline = time.monotonic() + 20
    while True:
        try:
            if found := look():
                return found
        except (OSError, IndexError):
            pass
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_question_that_kills_its_fork_is_told_and_the_next_is_answered(python, tmp_path):
    document = built(python, tmp_path)
    request: dict[str, Any] = {"command": "read", "trust_remote_code": False}
    deadly = fake_engine.checkpoint(tmp_path / "deadly", dies=True)
    with pytest.raises(worker.EngineSilentError, match="mine"):
        ask(document, tmp_path / "x.log", **request, folder=str(deadly))
    harmless = fake_engine.checkpoint(tmp_path / "harmless")
    assert ask(document, tmp_path / "x.log", **request, folder=str(harmless))["ok"]


def test_where_there_are_gpus_questions_get_an_interpreter_of_their_own(
    python, tmp_path, monkeypatch
):
    monkeypatch.setattr(environment, "has_cuda", lambda: True)
    document = built(python, tmp_path)
    assert document["status"] == "ok"
    read: dict[str, Any] = {"command": "read", "trust_remote_code": False}
    folder = fake_engine.checkpoint(tmp_path / "c", method="fp8")
    assert ask(document, tmp_path / "x.log", **read, folder=str(folder))["quantization"] == "fp8"
    deadly = fake_engine.checkpoint(tmp_path / "deadly", dies=True)
    with pytest.raises(worker.EngineSilentError):
        ask(document, tmp_path / "x.log", **read, folder=str(deadly))
    bench = {"command": "bench", "argv": [], "output": str(tmp_path / "records.json")}
    assert ask(document, tmp_path / "x.log", **bench) == {"ok": True}


def test_an_unknown_command_is_answered(python, tmp_path):
    answer = ask(built(python, tmp_path), tmp_path / "x.log", command="dance")
    assert answer["ok"] is False


def test_what_was_deleted_from_the_cache_is_made_again(python, tmp_path):
    document = built(python, tmp_path, patch_file(tmp_path))
    (overlay,) = (paths.actual(each) for each in document["pythonpath"])
    engine.restore(document)
    overlay.rename(tmp_path / "away")
    engine.restore(document)
    assert "two, patched" in (overlay / "sglang/launch_server.py").read_text()

    overlay.rename(tmp_path / "away again")
    patch_file(tmp_path, PATCH.replace("patched", "patched otherwise"))
    with pytest.raises(environment.EnvironmentUnusableError, match="engine mine"):
        engine.restore(document)


def test_the_stand_in_names_the_kernel_that_was_called(monkeypatch):
    monkeypatch.syspath_prepend(str(environment.STAND_IN))
    import sgl_kernel
    from sgl_kernel import gemm  # any name is there

    assert gemm.__name__ == "gemm"
    with pytest.raises(RuntimeError, match=r"sgl_kernel\.gemm was called.*no CUDA"):
        gemm(1, out=2)
    assert not hasattr(sgl_kernel, "__wrapped__")
    with pytest.raises(ModuleNotFoundError):
        import sgl_kernel.scalar_type


def test_the_tree_hash_is_of_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("1\n")
    (tmp_path / "data.txt").write_text("no Python\n")
    first = inside.tree_hash(tmp_path)
    (tmp_path / "data.txt").write_text("changed\n")
    assert inside.tree_hash(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert inside.tree_hash(tmp_path) != first


# Known pull requests, releases.


def test_a_release_after_the_merge_holds_the_request_if_it_shows(tmp_path):
    file = tmp_path / "srt/configs/model_config.py"
    file.parent.mkdir(parents=True)
    file.write_text('    x = config.get("moe_quant_algo")\n')
    known = upstream.merged(25820, "0.5.23", tmp_path)
    assert known is not None
    assert known.marker["text"] == 'x = config.get("moe_quant_algo")'
    assert upstream.merged(25820, "0.5.13.post1", tmp_path) is None
    file.write_text("nothing\n")
    assert upstream.merged(25820, "0.5.23", tmp_path) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("0.5.9", "0.5.10"), ("0.5.13", "0.5.13.post1"), ("0.5.13.post1", "0.5.14"), ("0.5.9", "0.6")],
)
def test_releases_in_order(one, other):
    assert upstream.older(one, other)
    assert not upstream.older(other, one)
    assert not upstream.older(one, one)


def test_one_flag_under_two_names():
    assert engine.renamed(["cuda-graph-max-bs"])["cuda-graph-max-bs-decode"] == "cuda-graph-max-bs"
    assert engine.renamed(["cuda-graph-bs", "cuda-graph-bs-decode"]) == {}
    gone = engine.removed(["torchao-config"])
    assert gone["disable-piecewise-cuda-graph"] == "cuda-graph-backend-prefill=disabled"
    assert "torchao-config" not in gone


@pytest.mark.parametrize(
    ("release", "own"),
    [("0.5.12.post1", "cuda-graph-max-bs"), ("0.5.23", "cuda-graph-max-bs-decode")],
)
def test_the_names_of_real_parsers(release, own):
    flags = json.loads((PARSERS / f"{release}.json").read_text())["flags"]
    other = ({"cuda-graph-max-bs", "cuda-graph-max-bs-decode"} - {own}).pop()
    assert engine.renamed(flags)[other] == own
    assert all(name in flags for name in engine.renamed(flags).values())
    assert not set(engine.removed(flags)) & set(flags)


# A git ref as the base.


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Upstream:
    """A repository with a release, whose wheel has a compiled part."""
    repository = Upstream(tmp_path / "repository")
    repository.release("0.5.13")
    package = repository.install(tmp_path / "wheel/sglang")
    (package / "srt/core.so").write_bytes(b"compiled")
    (package / "gone_since.py").write_text("x = 1\n")

    def ensure(version: str) -> Path:
        assert version == "0.5.13"
        return tmp_path / "python"

    monkeypatch.setattr(environment, "ensure", ensure)
    monkeypatch.setattr(environment, "package", lambda python: package)
    return repository


def test_a_git_base_is_its_python_over_the_releases_compiled_parts(repository):
    repository.git("checkout", "--quiet", "-B", "feature")
    commit = repository.commit({"python/sglang/srt/new.py": "new = 1\n"}, "feature")
    found = base.find({"git": {"url": repository.url, "ref": "feature"}})
    assert found.description["git"] == {
        "url": repository.url,
        "ref": "feature",
        "pinned": False,
        "commit": commit,
        "release": "0.5.13",
        "moved_to": None,
    }
    assert found.overlay == found.package.parent
    assert (found.package / "srt/new.py").read_text() == "new = 1\n"
    assert (found.package / "srt/core.so").read_bytes() == b"compiled"
    assert not (found.package / "gone_since.py").exists()
    assert (found.package / "srt/one.py").stat().st_nlink == 2, "what did not change is a link"


def test_a_git_base_stays_what_it_was_and_tells_of_moves(repository, tmp_path):
    repository.git("checkout", "--quiet", "-B", "feature")
    first = repository.commit({"python/sglang/srt/new.py": "new = 1\n"}, "feature")
    entry = {"git": {"url": repository.url, "ref": "feature"}}
    base.find(entry)
    second = repository.commit({"python/sglang/srt/new.py": "new = 2\n"}, "more")
    moved = base.find(entry).description["git"]
    assert (moved["commit"], moved["moved_to"]) == (first, second)
    pinned = base.find({"git": {"url": repository.url, "ref": second}})
    assert pinned.description["git"]["pinned"] is True
    assert (pinned.package / "srt/new.py").read_text() == "new = 2\n"
    repository.folder.rename(tmp_path / "unplugged")
    assert base.find(entry).description["git"]["cached"] is True
    with pytest.raises(ConnectionError):
        base.find({"git": {"url": repository.url, "ref": "never-seen"}})


@pytest.mark.parametrize(
    ("files", "ref", "result", "said"),
    [
        ({"sgl-kernel/csrc/gemm.cu": "// new\n"}, "feature", "touches-compiled-code", "gemm.cu"),
        ({"python/sglang/srt/x.rs": "fn a() {}\n"}, "feature", "touches-compiled-code", "x.rs"),
        ({"docs/guide.md": "x\n"}, "no-such-branch", "unreachable", "no-such-branch"),
    ],
)
def test_a_git_base_that_makes_no_engine(repository, tmp_path, files, ref, result, said):
    repository.git("checkout", "--quiet", "-B", "feature")
    repository.commit(files, "feature")
    entry = {"git": {"url": repository.url, "ref": ref}}
    document = engine.build(entry, engine_name="x", cuda=True, log=tmp_path / "x.log")
    checked(document)
    assert document["status"] == "failed"
    assert document["reason"]["class"] == f"base-{result}"
    assert said in document["reason"]["message"]
