"""Bundles for machines without network: what is packed, what comes out of unpacking."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

OFFLINE = Path(__file__).parents[2] / "envs/offline"

LOCK = """\
# a comment
anyio==4.16.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via httpx
Typing_Extensions==4.16.0 ; python_version < '3.13' \\
    --hash=sha256:cc
transformers==5.12.1 \\
    --hash=sha256:dd
tilelang==0.1.11 \\
    --hash=sha256:ee
msgspec==0.23.0 \\
    --hash=sha256:ff
"""


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"offline_{name}", OFFLINE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pack():
    return script("pack")


@pytest.fixture(scope="module")
def trim():
    return yaml.safe_load((OFFLINE / "trim.yaml").read_text())


@pytest.mark.parametrize(
    "line", ["typing-extensions", "typing_extensions==4.1", "Typing.Extensions @ file:///x"]
)
def test_names_of_packages_are_compared_as_indexes_do(pack, tmp_path, line):
    file = tmp_path / "provided.txt"
    file.write_text(f"# pip list\n{line}\n\nnumpy==2.3  # of the image\n")
    assert pack.provided(file) == {"typing-extensions", "numpy"}


def test_what_the_target_has_and_what_serving_never_imports_is_left_out(pack, trim):
    kept = pack.wanted(LOCK, {"anyio", "typing-extensions", "transformers"}, trim)
    assert [name for name, _ in pack.requirements(kept)] == ["transformers", "msgspec"]
    assert "msgspec==0.23.0 \\\n    --hash=sha256:ff" in kept


def test_everything_that_is_trimmed_is_a_package_of_a_lock_file(pack, trim):
    """A name that no lock file has is a misspelling: what it meant would be packed."""
    locks = [*OFFLINE.parent.glob("sglang-*.txt")]
    known = {name for lock in locks for name, _ in pack.requirements(lock.read_text())}
    dropped = {pack.plain(name) for names in trim["drop"].values() for name in names}
    assert dropped - known == {"uv"}  # it is the workflow's


def test_unwanted_files_are_removed_and_records_kept(pack, tmp_path):
    for name in ("sgl_kernel/flash_ops.abi3.so", "sgl_kernel/sm90/common.so", "bin/tool"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    info = tmp_path / "sgl_kernel-1.0.dist-info"
    (info / "licenses").mkdir(parents=True)
    for name in ("METADATA", "RECORD", "INSTALLER"):
        (info / name).write_text("Name: sgl_kernel\nVersion: 1.0\n")
    trim = {"files": {"unused": ["sgl_kernel/flash_ops*.so"]}, "keep_symbols": []}
    pack.trimmed(tmp_path, trim)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {
        "sgl_kernel",
        "sgl_kernel/sm90",
        "sgl_kernel/sm90/common.so",
        "sgl_kernel-1.0.dist-info",
        "sgl_kernel-1.0.dist-info/METADATA",
        "sgl_kernel-1.0.dist-info/RECORD",
    }


@pytest.fixture
def bundle(pack, tmp_path) -> Path:
    """Return a bundle whose engine is one small package, beside one of the target's."""
    base, folder = tmp_path / "base", tmp_path / "bundle"
    folder.mkdir()
    (base / "engine/sglang").mkdir(parents=True)
    (base / "engine/sglang/__init__.py").write_text("import yaml\nplace = __file__\n")
    (base / "project/src").mkdir(parents=True)
    for name in ("engine", "project"):
        pack.archive(folder / f"{name}.tar.xz", base, [name], threads=1)
    (folder / "unpack.sh").write_bytes((OFFLINE / "unpack.sh").read_bytes())
    return folder


def unpack(bundle: Path, where: Path) -> None:
    # torch and triton are compiled there, too, where the target's Python has them: it needn't.
    command = ["bash", str(bundle / "unpack.sh"), str(where), sys.executable]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def test_the_bundles_packages_come_first_then_those_of_the_targets_python(bundle, tmp_path):
    unpack(bundle, tmp_path / "there")
    asked = "import sglang, yaml; print(sglang.place, yaml.__file__)"
    done = subprocess.run(
        [tmp_path / "there/engine/bin/python", "-c", asked],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    place, other = done.stdout.split()
    assert Path(place) == tmp_path / "there/packages/engine/sglang/__init__.py"
    assert Path(other).is_relative_to(Path(yaml.__file__).parents[1])


def test_what_is_unpacked_already_is_left_alone(bundle, tmp_path):
    where = tmp_path / "there"
    unpack(bundle, where)
    edited = where / "project/src/edited"
    edited.write_text("by hand")
    unpack(bundle, where)
    assert edited.read_text() == "by hand"


def test_the_environment_is_of_the_place(bundle, tmp_path):
    where = tmp_path / "there"
    unpack(bundle, where)
    told = subprocess.run(
        ["bash", "-c", f". '{where}/env.sh' && env"],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    values = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    assert "PYTHONDONTWRITEBYTECODE" not in values
    assert values["HF_HUB_OFFLINE"] == "1"
    assert values["BRINGUP_CACHE"] == f"{where}/cache/bringup"
    assert values["PATH"].startswith(f"{where}/workflow/bin:")


def test_kernels_are_named_as_python_calls():
    for kernel in yaml.safe_load((OFFLINE / "kernels.yaml").read_text()):
        compile(script("kernels")._code(kernel), "kernel", "exec")
