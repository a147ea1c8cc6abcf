"""What comes of a patch: judged by the tree, whatever git prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from upstream_repository import PACKAGE, Upstream, body

from bringup.engine import overlay, sources
from bringup.engine.patches import Patch, marker, parsed, refusal

ONE = f"{PACKAGE}/srt/one.py"
TWO = f"{PACKAGE}/srt/two.py"
LINK = f"{PACKAGE}/srt/link.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("patches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_CACHE", str(folder / "cache"))
        patch.setattr(sources, "HOST", folder.as_uri())
        yield folder


@pytest.fixture(scope="module")
def upstream(folder) -> Upstream:
    upstream = Upstream(folder / sources.REPOSITORY)
    upstream.pull_request(
        7,
        {
            ONE: body(changed={20: "value_20 = 'patched'"}),
            TWO: body("other", changed={5: "other_05 = 7"}),
        },
    )
    return upstream


@pytest.fixture(scope="module")
def pull_request(upstream) -> Patch:
    """PR 7 changes line 20 of one file and line 5 of another, fetched with what it starts from."""
    patch = sources.fetch({"pr": 7})
    assert isinstance(patch, Patch)
    return patch


def without_objects(patch: Patch) -> Patch:
    return Patch(patch.source, patch.content, patch.pins)


def installed(upstream: Upstream, folder: Path, files: dict[str, str] | None = None) -> Path:
    """Install the main branch, with some files changed as a later release would have them."""
    package = upstream.install(folder / "sglang")
    for name, content in (files or {}).items():
        (package / name.removeprefix(f"{PACKAGE}/")).write_text(content)
    return package


def contents(package: Path) -> dict[str, bytes]:
    return {str(p.relative_to(package)): p.read_bytes() for p in package.rglob("*") if p.is_file()}


def test_a_patch_for_this_very_tree_is_applied(upstream, pull_request, tmp_path):
    package = installed(upstream, tmp_path)
    assert overlay.apply(without_objects(pull_request), package).result == "applied"
    assert "value_20 = 'patched'" in (package / "srt/one.py").read_text()
    assert "other_05 = 7" in (package / "srt/two.py").read_text()


def test_drift_far_from_the_hunk_does_not_matter(upstream, pull_request, tmp_path):
    package = installed(upstream, tmp_path, {ONE: "import os\n" + body()})
    assert overlay.apply(without_objects(pull_request), package).result == "applied"


def test_drift_near_the_hunk_needs_the_base_for_a_merge(upstream, pull_request, tmp_path):
    drifted = body(changed={18: "value_18 = 'later'"})
    package = installed(upstream, tmp_path / "a", {ONE: drifted})
    before = contents(package)
    alone = overlay.apply(without_objects(pull_request), package)
    assert alone.result == "does-not-apply"
    assert ONE in alone.excerpt[0]
    assert contents(package) == before, "two.py would have applied; a failed patch leaves all alone"

    merged = overlay.apply(pull_request, installed(upstream, tmp_path / "b", {ONE: drifted}))
    assert merged.result == "applied-3way"
    text = (tmp_path / "b/sglang/srt/one.py").read_text()
    assert "value_20 = 'patched'" in text
    assert "value_18 = 'later'" in text


def test_both_changed_the_same_line(upstream, pull_request, tmp_path):
    package = installed(upstream, tmp_path, {ONE: body(changed={20: "value_20 = 'otherwise'"})})
    before = contents(package)
    outcome = overlay.apply(pull_request, package)
    assert outcome.result == "conflict"
    assert outcome.excerpt[0] == ONE
    assert "value_20 = 'otherwise'" in outcome.excerpt
    assert "value_20 = 'patched'" in outcome.excerpt
    assert contents(package) == before


@pytest.mark.parametrize("objects", [True, False])
def test_a_second_time_it_is_in_the_tree(upstream, pull_request, tmp_path, objects):
    package = installed(upstream, tmp_path)
    patch = pull_request if objects else without_objects(pull_request)
    overlay.apply(patch, package)
    before = contents(package)
    again = overlay.apply(patch, package)
    assert again.result == "already-in-tree"
    assert "retired" in again.message
    assert contents(package) == before


def test_a_release_that_holds_the_patch_and_went_on(upstream, pull_request, tmp_path):
    later = body(changed={20: "value_20 = 'patched'", 23: "value_23 = 'later'"})
    package = installed(
        upstream, tmp_path, {ONE: later, TWO: body("other", changed={5: "other_05 = 7"})}
    )
    before = contents(package)
    assert overlay.apply(pull_request, package).result == "already-in-tree"
    assert contents(package) == before


def test_without_the_base_its_blocks_are_looked_for(upstream, tmp_path):
    block = {20: "first_line_of_it = 1\nsecond_line_of_it = 2\nthird_line_of_it = 3"}
    upstream.pull_request(10, {ONE: body(changed=block)})
    patch = without_objects(sources.fetch({"pr": 10}))
    later = installed(
        upstream, tmp_path / "a", {ONE: body(changed={**block, 21: "value_21 = 'later'"})}
    )
    assert overlay.apply(patch, later).result == "already-in-tree"
    partly = {20: "first_line_of_it = 1\nthird_line_of_it = 3"}
    other = installed(upstream, tmp_path / "b", {ONE: body(changed=partly)})
    assert overlay.apply(patch, other).result == "does-not-apply"


def test_one_line_that_stands_there_by_coincidence_is_no_merge(upstream, tmp_path):
    upstream.pull_request(8, {ONE: body(changed={20: "value_30 = 30"})})
    patch = sources.fetch({"pr": 8})
    package = installed(upstream, tmp_path, {ONE: body(changed={20: "value_20 = 'otherwise'"})})
    assert overlay.apply(patch, package).result == "conflict"


def test_abbreviated_ids_of_a_downloaded_diff_allow_no_merge(upstream, pull_request, tmp_path):
    """As GitHub's .diff files are; through the pull request the same change merges."""
    diff = upstream.git("diff", "--abbrev=9", "main", "pr-7") + "\n"
    file = tmp_path / "7.diff"
    file.write_text(diff)
    drifted = {ONE: body(changed={18: "value_18 = 'later'"})}
    from_file = sources.fetch({"file": str(file)})
    assert overlay.apply(from_file, installed(upstream, tmp_path / "a", drifted)).result == (
        "does-not-apply"
    )
    assert overlay.apply(pull_request, installed(upstream, tmp_path / "b", drifted)).result == (
        "applied-3way"
    )


def test_new_deleted_and_renamed_files(upstream, tmp_path):
    upstream.git("checkout", "--quiet", "-B", "pr-9", "main")
    upstream.git("mv", TWO, f"{PACKAGE}/srt/renamed.py")
    upstream.commit({ONE: None, f"{PACKAGE}/srt/new/added.py": "added = True\n"}, "move things")
    upstream.git("update-ref", "refs/pull/9/head", "HEAD")
    upstream.git("checkout", "--quiet", "main")
    package = installed(upstream, tmp_path)
    assert overlay.apply(sources.fetch({"pr": 9}), package).result == "applied"
    assert not (package / "srt/one.py").exists()
    assert not (package / "srt/two.py").exists()
    assert (package / "srt/renamed.py").read_text() == body("other")
    assert (package / "srt/new/added.py").read_text() == "added = True\n"


def test_nothing_is_written_through_a_link(upstream, pull_request, tmp_path):
    original = installed(upstream, tmp_path / "site")
    before = contents(original)
    package = tmp_path / "overlay/sglang"
    overlay.link_tree(original, package)
    assert overlay.apply(pull_request, package).result == "applied"
    assert contents(original) == before
    assert (package / "__init__.py").stat().st_nlink == 2, "what no patch touches stays a link"
    assert (package / "srt/one.py").stat().st_nlink == 1


PLAIN = f"""--- a/{ONE}
+++ b/{ONE}
@@ -20,3 +20,3 @@
 value_19 = 19
-value_20 = 20
+value_20 = 'plain'
 value_21 = 21
"""


def patch_of(text: str | bytes) -> Patch:
    content = text if isinstance(text, bytes) else text.encode()
    return Patch({"file": "x.patch"}, content)


def test_a_plain_unified_diff_will_do(upstream, tmp_path):
    package = installed(upstream, tmp_path)
    assert overlay.apply(patch_of(PLAIN), package).result == "applied"
    assert "value_20 = 'plain'" in (package / "srt/one.py").read_text()


def test_lines_that_look_like_headers_are_told_from_headers():
    text = PLAIN.replace("+value_20 = 'plain'", "++++ b/python/evil.py").replace(
        "-value_20 = 20", "--- a/python/evil.py"
    )
    (change,) = parsed(text.encode())
    assert change.path == ONE
    assert change.hunks == 1
    assert change.added == ["+++ b/python/evil.py"]


def compiled_diff(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-// a\n+// b\n"


@pytest.mark.parametrize(
    ("text", "result", "said"),
    [
        ("", "empty", "changes no file"),
        ("just a mail\n", "empty", "changes no file"),
        (PLAIN.replace("python/sglang/srt/one.py", "src/other.py"), "empty", "python/sglang"),
        (compiled_diff("docs/guide.md"), "empty", "documentation"),
        (PLAIN.replace(f"a/{ONE}", "/etc/passwd").replace(f"b/{ONE}", "/etc/passwd"),
         "does-not-apply", "/etc/passwd"),
        (PLAIN.replace(ONE, "python/sglang/../../../x.py"), "does-not-apply", ".."),
        (PLAIN + compiled_diff("sgl-kernel/csrc/gemm.cu"), "touches-compiled-code", "gemm.cu"),
        (PLAIN + compiled_diff("python/sglang/srt/lib.rs"), "touches-compiled-code", "Rust"),
        (PLAIN.replace("\n", "\r\n"), "does-not-apply", "CR LF"),
        (f"diff --git a/{ONE} b/{ONE}\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n",
         "does-not-apply", "binary"),
        (f"diff --git a/{ONE} b/{ONE}\nBinary files a/{ONE} and b/{ONE} differ\n",
         "does-not-apply", "binary"),
        (f"diff --git a/{LINK} b/{LINK}\nnew file mode 120000\n--- /dev/null\n+++ b/{LINK}\n"
         "@@ -0,0 +1 @@\n+/etc/passwd\n", "does-not-apply", "link"),
        ("".join(PLAIN.replace("one", f"f{i}") for i in range(400)), "too-large", "400 files"),
    ],
)  # fmt: skip
def test_bad_input_is_named(text, result, said):
    outcome = refusal(patch_of(text))
    assert outcome is not None
    assert outcome.result == result
    assert said in outcome.message


def test_jit_kernels_in_the_package_need_no_build(upstream, tmp_path):
    """The wheel ships them as source; they are compiled when they first run."""
    package = installed(upstream, tmp_path)
    kernel = package / "jit_kernel/csrc/norm.cuh"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("// a\n")
    outcome = overlay.apply(patch_of(compiled_diff(f"{PACKAGE}/jit_kernel/csrc/norm.cuh")), package)
    assert outcome.result == "applied"
    assert kernel.read_text() == "// b\n"


def test_a_file_that_this_release_does_not_have_is_named(upstream, tmp_path):
    package = installed(upstream, tmp_path)
    outcome = overlay.apply(patch_of(PLAIN.replace("one.py", "moved.py")), package)
    assert outcome.result == "does-not-apply"
    assert "moved.py: no such file here" in outcome.excerpt[0]


def test_the_marker_is_the_patchs_own_longest_line(upstream, pull_request, tmp_path):
    package = installed(upstream, tmp_path)
    overlay.apply(pull_request, package)
    assert marker(pull_request, package) == {"file": "srt/one.py", "text": "value_20 = 'patched'"}
