"""Checkpoints in folders: what is read of them, what is refused, and how files are verified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensor_files import header, write, write_folder, write_raw

from bringup import artifact, checkpoint
from bringup.checkpoint import hashes
from bringup.checkpoint.progress import Progress
from documents import checked

PROJECT = Path(__file__).parents[2]
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "torch_dtype": "bfloat16"}
TENSORS = {
    "model.embed_tokens.weight": ("BF16", [32, 16]),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", [16, 16]),
    "model.norm.weight": ("BF16", [16]),
    "lm_head.weight": ("BF16", [32, 16]),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of two shards with an index, a tokenizer and remote code."""
    names = list(TENSORS)
    parts = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
    config = {**CONFIG, "auto_map": {"AutoConfig": "configuration_x.X"}}
    made = write_folder(tmp_path / "checkpoint", config, {})
    for name, tensors in parts.items():
        write(made / name, {each: TENSORS[each] for each in tensors})
    total = header(TENSORS)[1]
    weight_map = {each: name for name, tensors in parts.items() for each in tensors}
    write_json(made / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})  # fmt: skip
    write_json(made / "tokenizer.json", {})
    (made / "configuration_x.py").write_text("X = 1\n")
    (made / "README.md").write_text("# A card\n")
    return made


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def read(folder: Path, **entry: object) -> dict[str, Any]:
    document = checkpoint.metadata({"path": str(folder), **entry}, name="mine")
    checked(document)
    return document


def refusal(folder: Path) -> str:
    """Return the one line that says why a folder can't be used."""
    document = read(folder)
    assert document["status"] == "failed"
    message = document["reason"]["message"]
    assert "\n" not in message
    return message


def names(document: dict[str, Any]) -> list[str]:
    return [file["name"] for file in document["files"]]


# What is read


def test_only_what_serving_needs_is_listed(folder):
    assert names(read(folder)) == [
        "config.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


def test_the_same_weights_in_other_layouts_are_left_out(folder):
    for name in ("pytorch_model.bin", "model.gguf", "consolidated.safetensors", "training_args.bin",
                 "original/consolidated.00.pth", "metal/model.bin"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x" * 100)
    document = read(folder)
    assert document["kind"] == "safetensors"
    assert [name for name in names(document) if name.startswith("model-")] == names(document)[1:3]
    assert not {"pytorch_model.bin", "model.gguf", "consolidated.safetensors"} & {*names(document)}


def test_bin_weights_are_taken_where_there_are_no_safetensors(tmp_path):
    made = write_folder(tmp_path / "old", CONFIG, {})
    (made / "pytorch_model.bin").write_bytes(b"x" * 100)
    (made / "training_args.bin").write_bytes(b"x")
    document = read(made)
    assert (document["kind"], document["headers"], document["weights_bytes"]) == ("bin", None, 100)


def test_a_folder_of_configs_has_no_headers(tmp_path):
    document = read(write_folder(tmp_path / "configs", CONFIG, {}))
    assert (document["status"], document["kind"], document["headers"]) == ("ok", None, None)


def test_hashes_of_the_small_files_are_those_of_their_bytes(folder):
    import hashlib

    document = read(folder)
    assert document["json_hashes"] == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("config.json", "model.safetensors.index.json")
    }


def test_the_same_content_gives_the_same_bytes_and_other_content_others(folder, tmp_path):
    first = json.dumps(read(folder))
    os.utime(folder / "config.json", (1, 1))
    assert json.dumps(read(folder)) == first
    write_json(folder / "config.json", {**CONFIG, "torch_dtype": "float16"})
    changed = read(folder)
    assert json.dumps(changed) != first
    assert changed["configs"] != json.loads(first)["configs"]


def test_remote_code_is_listed_with_its_hash_only_when_allowed(folder):
    silent = read(folder)
    assert silent["remote_code"] == []
    assert any("auto_map" in note for note in silent["notes"])
    allowed = read(folder, **{"trust-remote-code": True})
    assert [each["name"] for each in allowed["remote_code"]] == ["configuration_x.py"]
    assert len(allowed["remote_code"][0]["sha256"]) == 64
    assert "configuration_x.py" in names(allowed)


def test_a_stale_total_in_the_index_is_a_note(folder):
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["metadata"]["total_size"] = 510_290_000_000
    write_json(index, content)
    document = read(folder)
    assert document["status"] == "ok"
    real = header(TENSORS)[1]
    assert any(f"510,290,000,000, the headers say {real:,}" in each for each in document["notes"])


def test_a_snapshot_of_a_hub_cache_is_a_folder_like_any_other(folder, tmp_path):
    repo = tmp_path / "models--me--mine"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for path in folder.iterdir():
        blob = repo / "blobs" / path.name.replace(".", "")
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    assert read(snapshot)["status"] == "ok"


# What is refused


def test_a_folder_that_is_not_there_is_no_fact_about_a_checkpoint(tmp_path):
    with pytest.raises(checkpoint.UnreachableError, match="nowhere: no such folder"):
        checkpoint.metadata({"path": str(tmp_path / "nowhere")}, name="mine")


def test_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refusal(tmp_path / "empty")


@pytest.mark.parametrize(
    "text", ["[]", '"x"', "{", "{]", "\xff", "[" * 100_000, r'{"a": "\ud800"}']
)
def test_a_config_that_is_no_object(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert refusal(folder).startswith("config.json: ")


def test_a_config_too_large_to_be_one(folder):
    os.truncate(folder / "config.json", 2**30)
    assert refusal(folder).startswith("config.json: 1,073,741,824 bytes")


def test_a_missing_shard(folder):
    (folder / "model-2.safetensors").unlink()
    assert refusal(folder) == "model.safetensors.index.json names model-2.safetensors: not there"


def test_an_index_without_a_map(folder):
    write_json(folder / "model.safetensors.index.json", {"weight_map": ["model-1.safetensors"]})
    assert refusal(folder).startswith("model.safetensors.index.json: no `weight_map`")


def test_a_shard_cut_short(folder):
    shard = folder / "model-2.safetensors"
    size = shard.stat().st_size
    os.truncate(shard, size - 10)
    assert refusal(folder).startswith("model-2.safetensors: the tensors need 1,056 bytes")


def test_a_shard_with_something_after_it(folder):
    shard = folder / "model-2.safetensors"
    os.truncate(shard, shard.stat().st_size + 10)
    assert "something follows them" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 8])
def test_a_file_shorter_than_a_header(folder, size):
    os.truncate(folder / "model-1.safetensors", size)
    assert refusal(folder).startswith("model-1.safetensors: ")


def test_a_header_longer_than_the_file(folder):
    write_raw(folder / "model-1.safetensors", b"{}", 0, length=1_000)
    assert "the header should be 1,000 bytes long, but the file has 10" in refusal(folder)


def test_a_header_of_ten_gigabytes_is_not_read(folder):
    write_raw(folder / "model-1.safetensors", b"{}", 12 * 2**30, length=10 * 2**30)
    assert refusal(folder).startswith("model-1.safetensors: a header of 10,737,418,240 bytes")


def entry(
    begin: int, end: int, shape: list[int] | None = None, dtype: str = "U8"
) -> dict[str, Any]:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "not as it should be"),
        (b"[1, 2]", "no JSON object"),
        (b"[" * 50_000, "not as it should be"),
        (b'{"a": 1}', "has no dtype, shape and data_offsets"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, "overlap at 'b' (4–12)"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, "leave a gap at 'b' (8–12)"),
        ({"a": entry(0, 8, [7])}, "'a' is U8 [7] but has 8 bytes"),
        ({"a": entry(0, 8, [2], "F32"), "b": entry(8, 4, [4])}, "run back at 'b'"),
        ({"a": entry(0, 8, [-8])}, "shape [-8]"),
        ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0]}}, "data_offsets [0]"),
        ({"a": {"dtype": "U8", "shape": [8], "data_offsets": ["0", "8"]}}, "data_offsets"),
        ({"x" * 5_000: entry(0, 8)}, "a tensor's name has 5,000 characters"),
        (b'{"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}, '
         b'"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "a name stands twice"),
    ],
)  # fmt: skip
def test_a_header_that_is_wrong(folder, content, says):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    write_raw(folder / "model-1.safetensors", text, 12)
    message = refusal(folder)
    assert message.startswith("model-1.safetensors: ")
    assert says in message


def test_a_flood_of_names_ends_in_bounded_memory(tmp_path):
    entries = ",".join(f'"{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
                       for i in range(60_000))  # fmt: skip
    made = write_folder(tmp_path / "flood", CONFIG, {})
    write_raw(made / "model.safetensors", f"{{{entries}}}".encode(), 0)
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (400 * 2**20,) * 2)\n"
        "from bringup import checkpoint\n"
        "document = checkpoint.metadata({'path': sys.argv[1]}, name='flood')\n"
        "print(document['reason']['message'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, made], capture_output=True, text=True)
    assert done.stdout == "model.safetensors: names more than 50,000 different tensors\n", (
        done.stderr
    )


def test_links_that_leave_the_folder(folder, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (folder / "generation_config.json").symlink_to(tmp_path / "secret.json")
    assert refusal(folder).endswith(
        "generation_config.json: a link that leaves the checkpoint's folder"
    )


def test_links_to_nothing(folder):
    (folder / "generation_config.json").symlink_to("gone.json")
    assert "generation_config.json: a link to nothing" in refusal(folder)


def test_an_index_that_names_a_file_outside(folder, tmp_path):
    write(tmp_path / "other.safetensors", TENSORS)
    write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"a": "../other.safetensors"}}
    )
    assert "names ../other.safetensors: not there" in refusal(folder)


# Weights in place


def test_files_of_a_folder_are_verified_where_they_are(folder):
    document = checkpoint.weights(read(folder))
    checked(document)
    assert document["snapshot"] == str(folder)
    assert document["bytes"] == sum(
        (folder / each["name"]).stat().st_size for each in document["files"]
    )
    shard = next(each for each in document["files"] if each["name"] == "model-1.safetensors")
    assert shard["sha256"] == hashes.computed(folder / "model-1.safetensors")


def test_a_draft_is_brought_with_the_model(folder, tmp_path):
    tensors = {"fc.weight": ("BF16", [16, 16])}
    draft = write_folder(tmp_path / "draft", CONFIG, tensors)
    document = checkpoint.weights(read(folder), read(draft))
    checked(document)
    assert (document["status"], document["draft"]) == ("ok", str(draft))
    assert document["snapshot"] == str(folder)
    assert checkpoint.weights(read(folder))["draft"] is None
    metadata = read(draft)
    (draft / "model.safetensors").write_bytes(b"")
    damaged = checkpoint.weights(read(folder), metadata)
    checked(damaged)
    assert damaged["status"] == "failed"


def test_a_file_is_hashed_once_as_long_as_it_is_not_touched(folder, monkeypatch):
    metadata = read(folder)
    checkpoint.weights(metadata)
    counted: list[Path] = []
    once = hashes.computed
    monkeypatch.setattr(hashes, "computed", lambda path, *_: counted.append(path) or once(path))
    checkpoint.weights(metadata)
    assert counted == []
    os.utime(folder / "model-2.safetensors", (1, 1))
    checkpoint.weights(metadata)
    assert [path.name for path in counted] == ["model-2.safetensors"]


def test_a_shard_that_was_damaged_since_is_named(folder):
    metadata = read(folder)
    os.truncate(folder / "model-2.safetensors", 100)
    document = checkpoint.weights(metadata)
    checked(document)
    assert document["status"] == "failed"
    assert document["reason"]["message"].startswith("model-2.safetensors: 100 bytes, ")


def test_a_folder_of_configs_has_nothing_to_serve(tmp_path):
    document = checkpoint.weights(read(write_folder(tmp_path / "configs", CONFIG, {})))
    assert document["status"] == "failed"
    assert "no weights" in document["reason"]["message"]


def test_after_failed_metadata_weights_are_skipped(tmp_path):
    (tmp_path / "empty").mkdir()
    metadata = read(tmp_path / "empty")
    document = checkpoint.weights(metadata)
    checked(document)
    assert document["status"] == "skipped"
    assert "no config.json" in document["reason"]["message"]


# Progress


def test_progress_says_how_much_how_fast_and_how_long_still(capfd):
    now = [0.0]
    progress = Progress("fetch it", 4 * 2**30, clock=lambda: now[0], every_s=10)
    progress.add(2**29)
    assert capfd.readouterr().err == ""
    now[0] = 10.0
    progress.add(2**29)
    assert capfd.readouterr().err == ("fetch it: 1.00 of 4.00 GiB (25.0 %), 102 MiB/s, 30 s left\n")
    now[0] = 4000.0
    assert progress.line().endswith("3 h 20 min left")


def test_an_attempt_that_starts_anew_is_counted_once():
    progress = Progress("fetch it", 100)
    bar = progress.bar()
    bar(total=100).update(60)
    bar(total=100).update(100)
    progress.bar()().update(5)
    assert progress.done == 105


def test_an_interruption_ends_downloads_at_their_next_bytes():
    progress = Progress("fetch it", 100)
    bar = progress.bar()()
    progress.stop()
    with pytest.raises(checkpoint.UnreachableError, match="fetch it: interrupted"):
        bar.update(10)


def test_documents_can_be_written(folder, tmp_path):
    artifact.write(tmp_path / "metadata.json", read(folder))
    assert artifact.read(tmp_path / "metadata.json") == read(folder)
