"""Where patches come from: pinned, moved, gone, without a network."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from upstream_repository import PACKAGE, Upstream, body

from bringup.engine import git, overlay, sources
from bringup.engine.patches import Outcome, Patch, named

ONE = f"{PACKAGE}/srt/one.py"
CHANGE = {ONE: body(changed={20: "value_20 = 'patched'"})}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "HOST", tmp_path.as_uri())
    return tmp_path / "cache"


@pytest.fixture
def upstream(tmp_path) -> Upstream:
    return Upstream(tmp_path / sources.REPOSITORY)


def objects(cache: Path, kind: str) -> int:
    """Return how many objects of a kind the mirror holds."""
    (config,) = (cache / "git").glob("*/config")
    every = ("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)")
    return git.output(config.parent, *every).split().count(kind)


def test_a_pull_request_comes_with_its_base_and_little_else(upstream, cache):
    for number in range(30):
        upstream.commit({f"{PACKAGE}/srt/file_{number}.py": body(f"v{number}")}, f"file {number}")
    start = upstream.git("rev-parse", "main")
    head = upstream.pull_request(5, CHANGE)
    upstream.commit({"docs/guide.md": "more\n"}, "main goes on")
    patch = sources.fetch({"pr": 5})
    assert isinstance(patch, Patch)
    assert patch.pins["head"] == head
    assert patch.pins["base"] == start
    assert patch.pins["pinned"] is False
    assert [change.path for change in patch.changes] == [ONE]
    assert b"index " + upstream.git("rev-parse", f"{start}:{ONE}").encode() in patch.content
    assert objects(cache, "blob") == 2, "the file before and after, of 34 in the tree"


def test_a_server_without_filters_serves_as_well(tmp_path):
    plain = Upstream(tmp_path / "someone/fork", filters=False)
    plain.pull_request(5, CHANGE)
    patch = sources.fetch({"pr": 5, "repo": "someone/fork"})
    assert isinstance(patch, Patch)
    assert [change.path for change in patch.changes] == [ONE]


def test_history_deeper_than_the_first_fetch(upstream):
    start = upstream.git("rev-parse", "main")
    upstream.pull_request(5, CHANGE)
    stream = "".join(
        f"commit refs/heads/main\ncommitter a <a@example.org> {1_700_001_000 + i} +0000\n"
        f"data 1\nx\n{f'from {start}' if i == 0 else ''}\n"
        for i in range(100)
    )
    subprocess.run(
        ["git", "fast-import", "--quiet", "--force"],
        cwd=upstream.folder,
        input=stream.encode(),
        check=True,
    )
    patch = sources.fetch({"pr": 5})
    assert isinstance(patch, Patch)
    assert patch.pins["base"] == start


def test_a_pinned_head_and_where_the_request_has_moved(upstream):
    first = upstream.pull_request(5, CHANGE)
    second = upstream.pull_request(5, {ONE: body(changed={20: "value_20 = 'second'"})}, start=first)
    pinned = sources.fetch({"pr": 5, "head": first[:10]})
    assert isinstance(pinned, Patch)
    assert pinned.pins["pinned"] is True
    assert pinned.pins["head"] == first
    assert pinned.pins["moved_to"] == second
    assert b"'patched'" in pinned.content


def test_a_pinned_head_that_was_pushed_over(upstream):
    first = upstream.pull_request(5, CHANGE)
    upstream.pull_request(5, {ONE: body(changed={20: "value_20 = 'rewritten'"})})
    pinned = sources.fetch({"pr": 5, "head": first})
    assert isinstance(pinned, Patch)
    assert b"'patched'" in pinned.content


def test_a_short_id_of_a_head_that_was_pushed_over_needs_all_digits(upstream):
    first = upstream.pull_request(5, CHANGE)
    upstream.pull_request(5, {ONE: body(changed={20: "value_20 = 'rewritten'"})})
    short = sources.fetch({"pr": 5, "head": first[:9]})
    assert isinstance(short, Outcome)
    assert short.result == "unreachable"
    assert "40 digits" in short.message


def test_what_was_resolved_once_stays_and_the_move_is_told(upstream):
    first = upstream.pull_request(5, CHANGE)
    before = sources.fetch({"pr": 5})
    second = upstream.pull_request(5, {ONE: body(changed={20: "value_20 = 'second'"})})
    after = sources.fetch({"pr": 5})
    assert isinstance(before, Patch)
    assert isinstance(after, Patch)
    assert after.content == before.content
    assert after.pins == {**before.pins, "moved_to": second}
    assert after.pins["head"] == first


def test_without_a_network_the_cached_copy_serves_and_says_so(upstream, tmp_path):
    upstream.pull_request(5, CHANGE)
    online = sources.fetch({"pr": 5})
    upstream.folder.rename(tmp_path / "unplugged")
    offline = sources.fetch({"pr": 5})
    assert isinstance(online, Patch)
    assert isinstance(offline, Patch)
    assert offline.content == online.content
    assert offline.pins["cached"] is True
    never_seen = sources.fetch({"pr": 6})
    assert isinstance(never_seen, Outcome)
    assert (never_seen.result, never_seen.transient) == ("unreachable", True)


@pytest.mark.parametrize(
    "source",
    [{"pr": 404}, {"git": {"url": "sgl-project/sglang", "ref": "no-such-branch"}}],
)
def test_what_is_gone_is_an_outcome_not_a_network_failure(upstream, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    outcome = sources.fetch(source)
    assert isinstance(outcome, Outcome)
    assert (outcome.result, outcome.transient) == ("unreachable", False)
    assert "has no" in outcome.message


def test_a_pull_request_that_was_merged(upstream):
    """Its head is in the main branch then; what it changed is still told from what came later."""
    start = upstream.git("rev-parse", "main")
    head = upstream.pull_request(5, CHANGE)
    upstream.commit({"docs/guide.md": "meanwhile\n"}, "meanwhile")
    upstream.git("merge", "--quiet", "--no-ff", "-m", "merge 5", head)
    upstream.commit({"docs/guide.md": "later\n"}, "later")
    patch = sources.fetch({"pr": 5})
    assert isinstance(patch, Patch)
    assert patch.pins["base"] == start
    assert [change.path for change in patch.changes] == [ONE]


def test_a_request_whose_branch_took_in_the_main_branch(upstream):
    upstream.pull_request(5, CHANGE)
    upstream.commit({"docs/guide.md": "meanwhile\n"}, "meanwhile")
    upstream.git("checkout", "--quiet", "pr-5")
    upstream.git("merge", "--quiet", "--no-ff", "-m", "update", "main")
    upstream.git("update-ref", "refs/pull/5/head", "HEAD")
    upstream.git("checkout", "--quiet", "main")
    patch = sources.fetch({"pr": 5})
    assert isinstance(patch, Patch)
    assert [change.path for change in patch.changes] == [ONE], "not what main brought in"


def test_the_sha_of_a_merge_commit_is_refused(upstream):
    head = upstream.pull_request(5, CHANGE)
    upstream.commit({"docs/guide.md": "meanwhile\n"}, "meanwhile")
    upstream.git("merge", "--quiet", "--no-ff", "-m", "merge 5", head)
    merge = upstream.git("rev-parse", "main")
    for source in ({"pr": 5, "head": merge}, {"git": {"url": upstream.url, "ref": merge}}):
        outcome = sources.fetch(source)
        assert isinstance(outcome, Outcome)
        assert outcome.result == "does-not-apply"
        assert "merge commit" in outcome.message


def test_a_whole_branch_is_too_large_and_its_files_are_not_fetched(upstream, cache):
    upstream.pull_request(5, {f"{PACKAGE}/srt/f{i}.py": f"x = {i}\n" for i in range(400)})
    outcome = sources.fetch({"pr": 5})
    assert isinstance(outcome, Outcome)
    assert outcome.result == "too-large"
    assert "400 files" in outcome.message
    assert objects(cache, "blob") == 0


def test_the_users_git_settings_do_not_change_a_patch(upstream, tmp_path, monkeypatch):
    upstream.pull_request(5, CHANGE)
    url = {"url": upstream.url, "ref": "pr-5"}
    plain = sources.fetch({"pr": 5})
    settings = tmp_path / "gitconfig"
    settings.write_text("[diff]\nnoprefix = true\ncontext = 1\n[color]\nui = always\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", "/no/such/repository")
    other = sources.fetch({"git": url})
    assert isinstance(plain, Patch)
    assert isinstance(other, Patch)
    assert other.content == plain.content


def test_a_pull_request_of_another_repository(upstream, tmp_path):
    other = Upstream(tmp_path / "someone/router")
    other.pull_request(5, {"src/main.rs": "fn main() {}\n"})
    patch = sources.fetch({"pr": 5, "repo": "someone/router"})
    assert isinstance(patch, Patch)
    package = upstream.install(tmp_path / "sglang")
    outcome = overlay.apply(patch, package)
    assert outcome.result == "empty"
    assert "another repository" in outcome.message


def test_an_unrelated_history_is_named(upstream):
    upstream.git("checkout", "--quiet", "--orphan", "unrelated")
    head = upstream.commit({ONE: "x = 1\n"}, "unrelated")
    upstream.git("checkout", "--quiet", "main")
    outcome = sources.fetch({"git": {"url": upstream.url, "ref": head}})
    assert isinstance(outcome, Outcome)
    assert outcome.result == "does-not-apply"
    assert "no history" in outcome.message


@pytest.mark.parametrize("as_path", [True, False])
def test_a_branch_of_any_git_address_or_local_path(upstream, as_path):
    upstream.pull_request(5, CHANGE)
    url = str(upstream.folder) if as_path else upstream.url
    patch = sources.fetch({"git": {"url": url, "ref": "pr-5"}})
    assert isinstance(patch, Patch)
    assert patch.pins["pinned"] is False
    assert [change.path for change in patch.changes] == [ONE]


def test_one_commit_of_the_main_branch_is_its_own_change(upstream):
    commit = upstream.commit(CHANGE, "squashed pull request")
    upstream.commit({"docs/guide.md": "later\n"}, "later")
    patch = sources.fetch({"git": {"url": upstream.url, "ref": commit}})
    assert isinstance(patch, Patch)
    assert patch.pins["pinned"] is True
    assert [change.path for change in patch.changes] == [ONE]


def test_the_main_branch_as_a_patch_is_empty(upstream):
    outcome = sources.fetch({"git": {"url": upstream.url, "ref": "main"}})
    assert isinstance(outcome, Outcome)
    assert outcome.result == "empty"


@contextlib.contextmanager
def web(content: bytes | None) -> Iterator[str]:
    """Serve one file on loopback; None: the server has nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x.patch"
        server.shutdown()


def test_an_address_is_fetched_once_and_checked():
    content = b"--- a/x\n+++ b/x\n"
    right = hashlib.sha256(content).hexdigest()
    with web(content) as url:
        wrong = sources.fetch({"url": url, "sha256": "0" * 64})
        patch = sources.fetch({"url": url, "sha256": right})
    assert isinstance(wrong, Outcome)
    assert (wrong.result, wrong.transient) == ("unreachable", False)
    assert right in wrong.message
    assert isinstance(patch, Patch)
    assert patch.content == content
    again = sources.fetch({"url": url, "sha256": right})
    assert isinstance(again, Patch), "the server is gone, the copy is not"
    other = sources.fetch({"url": url, "sha256": "1" * 64})
    assert isinstance(other, Outcome)
    assert other.transient, "a server that does not answer may answer next time"


def test_an_address_without_a_file():
    with web(None) as url:
        outcome = sources.fetch({"url": url, "sha256": "0" * 64})
    assert isinstance(outcome, Outcome)
    assert (outcome.result, outcome.transient) == ("unreachable", False)
    assert "404" in outcome.message


def test_a_missing_file_is_named(tmp_path):
    outcome = sources.fetch({"file": str(tmp_path / "gone.patch")})
    assert isinstance(outcome, Outcome)
    assert outcome.result == "unreachable"
    assert "gone.patch" in outcome.message


def test_names_that_people_use():
    assert named({"pr": 25820}) == "PR #25820"
    assert named({"pr": 3, "repo": "a/b"}) == "PR #3 of a/b"
    assert named({"git": {"url": "u", "ref": "r"}}) == "u at r"
    assert named({"file": "x.patch"}) == "x.patch"
