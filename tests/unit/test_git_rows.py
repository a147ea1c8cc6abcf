"""What ``git apply --3way`` does in each situation, and what we make of the same one.

The first half of each row is git itself: its exit code and what it leaves in the tree, which is
why neither its words nor its code are believed.  The second half is our outcome for that patch on
that tree.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from git_server import running
from upstream_repository import PACKAGE, Upstream, body

from bringup.engine import git, overlay, sources
from bringup.engine.patches import Patch

ONE = f"{PACKAGE}/srt/one.py"
TWO = f"{PACKAGE}/srt/two.py"
CHANGE = {
    ONE: body(changed={20: "value_20 = 'patched'"}),
    TWO: body("other", changed={5: "other_05 = 'patched'"}),
}
FAR = {ONE: "import os\n" + body()}
NEAR = {ONE: body(changed={18: "value_18 = 'later'"})}
SAME_LINE = {ONE: body(changed={20: "value_20 = 'otherwise'"})}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    with running(tmp_path / "served") as server:
        monkeypatch.setattr(sources, "HOST", server.url)
        yield server


@dataclass
class Situation:
    """A clone of main, which has drifted since the pull request, and the patch to apply there."""

    upstream: Upstream
    clone: Path
    patch: Path

    def apply(self, *how: str) -> subprocess.CompletedProcess[str]:
        return git.run(self.clone, "apply", *how, str(self.patch))

    def state(self) -> str:
        """Return ``git status --porcelain``: '' for a tree as it was."""
        return git.output(self.clone, "status", "--porcelain", "--untracked-files=no")


@pytest.fixture
def situation(server, tmp_path):
    def make(drift: dict[str, str], *clone: str, abbreviated: bool = False) -> Situation:
        upstream = Upstream(tmp_path / "served" / sources.REPOSITORY)
        start = upstream.git("rev-parse", "main")
        upstream.pull_request(7, CHANGE)
        if drift:
            upstream.commit(drift, "main goes on")
        url = f"{server.url}/{sources.REPOSITORY}"
        git.output(tmp_path, "clone", "--quiet", *clone, url, "clone")
        ids = "--abbrev=9" if abbreviated else "--full-index"
        patch = tmp_path / "7.diff"
        patch.write_text(upstream.git("diff", ids, start, "pr-7") + "\n")
        return Situation(upstream, tmp_path / "clone", patch)

    return make


def ours(situation: Situation, tmp_path: Path) -> str:
    """Return our outcome of PR 7 on the release that main is now."""
    patch = sources.fetch({"pr": 7})
    assert isinstance(patch, Patch), patch
    return overlay.apply(patch, situation.upstream.install(tmp_path / "sglang")).result


ALL_STAGED = f"M  {ONE}\nM  {TWO}\n"

ROWS = {
    # name: (drift, clone options, abbreviated ids, fetch the base, code, tree after, our outcome)
    "no drift, depth 1": ({}, ["--depth=1"], False, False, 0, ALL_STAGED, "applied"),
    "far drift, depth 1": (FAR, ["--depth=1"], False, False, 0, ALL_STAGED, "applied"),
    "near drift, depth 1": (NEAR, ["--depth=1"], False, False, 1, "", "applied-3way"),
    "near drift, depth 1, base fetched": (
        *(NEAR, ["--depth=1"], False, True),
        *(0, ALL_STAGED, "applied-3way"),
    ),
    "near drift, whole clone": (NEAR, [], False, False, 0, ALL_STAGED, "applied-3way"),
    "same line, whole clone": (
        *(SAME_LINE, [], False, False),
        *(1, f"UU {ONE}\nM  {TWO}\n", "conflict"),
    ),
    "near drift, blobless, short ids": (
        *(NEAR, ["--filter=blob:none"], True, False),
        *(1, "", "applied-3way"),
    ),
    "near drift, blobless, full ids": (
        *(NEAR, ["--filter=blob:none"], False, False),
        *(0, ALL_STAGED, "applied-3way"),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_patch_on_a_clone(situation, tmp_path, row):
    drift, clone, abbreviated, fetch_base, code, tree, outcome = ROWS[row]
    here = situation(drift, *clone, abbreviated=abbreviated)
    if fetch_base:
        base = here.upstream.git("rev-parse", "main~1")
        git.output(here.clone, "fetch", "--quiet", "--depth=1", "origin", base)
    done = here.apply("--3way")
    assert (done.returncode, here.state()) == (code, tree), done.stderr
    assert ours(here, tmp_path) == outcome


def test_git_says_error_and_succeeds(situation):
    far = situation(FAR, "--depth=1")
    done = far.apply("--3way")
    assert "error:" in done.stderr
    assert done.returncode == 0


def test_git_says_cleanly_and_fails(situation):
    done = situation(NEAR, "--depth=1").apply("--3way")
    assert f"Applied patch to '{TWO}' cleanly." in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("clone, code", [([], 0), (["--depth=1"], 1)])
def test_a_second_time(situation, tmp_path, clone, code):
    """With the files before the patch at hand git does nothing and says that it did."""
    here = situation(CHANGE, *clone)
    if not clone:
        git.output(here.clone, "checkout", "--quiet", "HEAD")
    done = here.apply("--3way")
    assert (done.returncode, here.state()) == (code, ""), done.stderr
    assert here.apply("--reverse", "--check").returncode == 0
    assert ours(here, tmp_path) == "already-in-tree"


def test_files_that_differ_from_the_index(situation, tmp_path):
    """Git refuses; what we patch is the installed file as it is, edited by hand or not."""
    here = situation({})
    edited = body(changed={35: "value_35 = 'by hand'"})
    (here.clone / ONE).write_text(edited)
    done = here.apply("--3way")
    assert done.returncode == 1
    assert "does not match index" in done.stderr
    assert (here.clone / ONE).read_text() == edited

    package = here.upstream.install(tmp_path / "sglang")
    (package / "srt/one.py").write_text(edited)
    assert overlay.apply(sources.fetch({"pr": 7}), package).result == "applied"
    text = (package / "srt/one.py").read_text()
    assert "value_20 = 'patched'" in text
    assert "value_35 = 'by hand'" in text


def test_a_check_without_the_merge_says_no_where_the_merge_works(situation, tmp_path):
    here = situation(NEAR)
    assert here.apply("--check").returncode == 1
    assert here.apply("--check", "--3way").returncode == 0
    assert here.apply("--reverse", "--check").returncode == 1
    assert ours(here, tmp_path) == "applied-3way"


def test_over_a_network_only_what_is_needed_is_fetched(situation, server):
    here = situation({})
    for number in range(20):
        noise = "".join(f"{number} {i} {hash((number, i))}\n" for i in range(4000))
        here.upstream.commit({f"docs/{number}.txt": noise}, f"more {number}")
    server.served = 0
    assert isinstance(sources.fetch({"pr": 7}), Patch)
    ours_bytes = server.served
    server.served = 0
    url = f"{server.url}/{sources.REPOSITORY}"
    git.output(here.clone.parent, "clone", "--quiet", url, "again")
    assert ours_bytes < server.served / 20


@pytest.mark.parametrize("status", [401, 404, 503])
def test_a_host_that_refuses_fails_the_job_and_not_the_engine(server, status):
    server.refuses = status
    outcome = sources.fetch({"pr": 7})
    assert outcome.result == "unreachable"
    assert f"{server.url}/{sources.REPOSITORY}" in outcome.message
    assert outcome.transient


def test_a_host_that_is_away_after_the_first_time(situation, server, tmp_path):
    here = situation({})
    first = sources.fetch({"pr": 7})
    server.refuses = 503
    again = sources.fetch({"pr": 7})
    assert again.content == first.content
    assert again.pins["cached"] is True
    assert overlay.apply(again, here.upstream.install(tmp_path / "sglang")).result == "applied"
