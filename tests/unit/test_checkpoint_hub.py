"""Checkpoints in repositories: a hub on loopback, driven by the real huggingface_hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hub as hubs
import huggingface_hub
import pytest
from huggingface_hub import constants
from tensor_files import write, write_folder

from bringup import checkpoint, formats
from bringup.checkpoint import download
from documents import checked

PROJECT = Path(__file__).parents[2]
REPO = "maker/model"
TOKEN = "hf_" + "secretsecretsecret1234"
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "torch_dtype": "bfloat16"}
SHARDS = ["model-1.safetensors", "model-2.safetensors", "model-3.safetensors"]


@pytest.fixture
def waits(monkeypatch):
    """Make waiting instant; what was waited for is in the list."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.fixture
def hub(tmp_path, monkeypatch, waits):
    """A hub, and a client that knows no other."""
    with hubs.running() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running
        huggingface_hub.close_session()


@pytest.fixture
def folder(tmp_path):
    """Three shards of real bytes with an index, as the hub has them."""
    made = write_folder(tmp_path / "origin", CONFIG, {})
    weight_map = {}
    for number, shard in enumerate(SHARDS):
        name = f"model.layers.{number}.mlp.up_proj.weight"
        path = write(made / shard, {name: ("BF16", [64, 1000 + number])})
        with path.open("r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(os.urandom(1000))
        weight_map[name] = shard
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (made / "tokenizer.json").write_text("{}")
    (made / "configuration_x.py").write_text("X = 1\n")
    (made / "README.md").write_text("# A card\n")
    return made


@pytest.fixture
def commit(hub, folder):
    return hub.add(REPO, folder)


def read(revision: str = "main", repo: str = REPO) -> dict[str, Any]:
    return checked(checkpoint.metadata({"repo": repo, "revision": revision}, name="it"))


def fetch(metadata: dict[str, Any]) -> dict[str, Any]:
    return checked(checkpoint.weights(metadata))


def refusal(**entry: str) -> str:
    """Return the one line of an error that is no fact about the checkpoint."""
    with pytest.raises(checkpoint.UnreachableError) as caught:
        checkpoint.metadata({"repo": REPO, "revision": "main", **entry}, name="it")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def gets(hub: hubs.Hub, name: str) -> int:
    return sum(each.method == "GET" and name in each.path for each in hub.requests)


# Metadata


def test_a_branch_a_tag_and_a_commit_mean_the_commit(hub, folder, commit):
    hub.refs[REPO]["v1"] = commit
    assert {read(each)["source"]["commit"] for each in ("main", "v1", commit)} == {commit}
    assert read("v1")["source"] == {"repo": REPO, "revision": "v1", "commit": commit}


def test_files_have_the_hubs_sizes_and_ids(hub, folder, commit):
    document = read()
    listed = {each["name"]: each for each in document["files"]}
    assert set(listed) == {"config.json", "model.safetensors.index.json", "tokenizer.json", *SHARDS}
    for shard in SHARDS:
        content = (folder / shard).read_bytes()
        assert listed[shard]["size"] == len(content)
        assert listed[shard]["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_large_checkpoint_is_described_by_a_thousandth_of_its_bytes(hub, tmp_path):
    made = write_folder(tmp_path / "large", CONFIG, {})
    experts = {f"model.layers.0.mlp.experts.{e}.{part}.weight": ("BF16", [7168, 2048])
               for e in range(64) for part in ("gate_proj", "up_proj", "down_proj")}  # fmt: skip
    path = write(made / "model.safetensors", experts)
    hub.add(REPO, made, ids={"model.safetensors": "0" * 64})
    document = read()
    assert document["weights_bytes"] == path.stat().st_size > 5e9
    assert hub.sent() <= document["weights_bytes"] / 1000
    shown = formats.detect(document)["observed"]["experts"]
    assert (shown["format"], shown["weights"]) == ("bf16", 192)


def test_the_same_commit_gives_the_same_bytes_on_another_machine(
    hub, commit, tmp_path, monkeypatch
):
    first = json.dumps([read(), fetch(read())])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "other-hub"))
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "other-cache"))
    assert json.dumps([read(), fetch(read())]) == first


def test_two_revisions_with_the_same_weights_differ_in_their_json(hub, folder, commit):
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {}}))
    other = hub.add(REPO, folder, revision="drifted")
    one, two = read("main"), read("drifted")
    assert two["source"]["commit"] == other != commit
    assert one["weights_bytes"] == two["weights_bytes"]
    assert one["json_hashes"] != two["json_hashes"]


def test_remote_code_is_fetched_only_when_allowed(hub, commit):
    read()
    assert gets(hub, "configuration_x.py") == 0
    allowed = checkpoint.metadata({"repo": REPO, "trust-remote-code": True}, name="it")
    assert [each["name"] for each in allowed["remote_code"]] == ["configuration_x.py"]


def test_a_damaged_shard_on_the_hub_is_a_fact(hub, folder, commit):
    os.truncate(folder / SHARDS[1], 5_000)
    document = read(hub.add(REPO, folder))
    assert document["status"] == "failed"
    assert document["reason"]["message"].startswith(f"{SHARDS[1]}: the tensors need 128,128 bytes")


# Trouble that passes


@pytest.mark.parametrize("status", [429, 500, 502, 503])
@pytest.mark.parametrize("path", ["/api/models", SHARDS[0], "config.json"])
def test_trouble_that_passes_is_waited_out(hub, commit, waits, path, status):
    hub.fail(path, status=status, times=2)
    assert read()["status"] == "ok"
    assert waits


def test_the_hubs_own_waiting_time_is_kept(hub, commit, waits):
    hub.fail("/api/models", status=429, headers={"Retry-After": "42"})
    read()
    assert 42 in waits


@pytest.mark.parametrize("path", [SHARDS[0], "model.safetensors.index.json", "/api/models"])
def test_a_cut_connection_is_taken_up_again(hub, commit, path):
    hub.fail(path, cut_after=3)
    assert read()["status"] == "ok"


def test_trouble_that_stays_ends_in_one_line(hub, commit, waits):
    hub.fail("/api/models", status=503, times=100)
    line = refusal()
    assert line == f"{REPO}: the list of files: HTTP status 503 (from {hub.url})"
    assert waits == sorted(waits)
    assert len(waits) == 5


def test_what_answers_but_is_no_hub(hub, commit):
    hub.fail("/api/models", status=200)
    assert refusal().startswith(f"{REPO}: the list of files: JSONDecodeError")


def test_no_hub_at_all(hub, commit, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    line = refusal()
    assert line.startswith(f"{REPO}: the list of files: ConnectError")
    assert "(from http://127.0.0.1:9); HF_HUB_OFFLINE=1 makes do" in line


# Rights


def test_a_repository_that_is_not_there(hub):
    assert "maker/model: no such repository" in refusal()


def test_a_revision_that_is_not_there(hub, commit):
    assert refusal(revision="v9").startswith("maker/model: no revision 'v9': name a branch")


def test_a_gated_repository_says_what_to_do(hub, commit):
    hub.gated.add(REPO)
    line = refusal()
    assert f"gated: ask for access at {hub.url}/{REPO} and set HF_TOKEN" in line


def test_a_name_that_is_none(hub):
    assert "neither a folder nor the name of a hub repository" in refusal(repo="a--b/../c d")


def test_the_token_opens_gated_repositories_and_stays_secret(hub, commit, tmp_path, capfd):
    hub.gated.add(REPO)
    hub.token = TOKEN
    hub.fail(SHARDS[0], status=503)
    document = fetch(read())
    written = "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "cache").rglob("*")
        if path.is_file()
    )
    out = capfd.readouterr()
    for text in (json.dumps(document), written, out.out, out.err):
        assert TOKEN not in text
    # The store that the hub redirects to is another host.
    store = [each for each in hub.requests if each.path.startswith("/store")]
    assert store
    assert not any(each.token for each in store)


# Weights


def test_all_files_are_brought_and_verified(hub, folder, commit):
    document = fetch(read())
    snapshot = checkpoint_folder(document)
    for each in document["files"]:
        content = (snapshot / each["name"]).read_bytes()
        assert content == (folder / each["name"]).read_bytes()
        assert each["sha256"] == hashlib.sha256(content).hexdigest()
    assert not (snapshot / "README.md").exists()


def checkpoint_folder(document: dict[str, Any]) -> Path:
    from bringup import paths

    assert document["snapshot"].startswith("{cache}/snapshots/")
    return paths.actual(document["snapshot"])


def test_what_is_here_is_neither_fetched_nor_hashed_again(hub, commit, monkeypatch):
    metadata = read()
    first = fetch(metadata)
    hub.requests.clear()
    monkeypatch.setattr("bringup.checkpoint.hashes.computed", None)
    assert fetch(metadata) == first
    assert hub.requests == []


def test_files_in_an_existing_cache_are_used(hub, commit):
    huggingface_hub.hf_hub_download(REPO, SHARDS[1], revision=commit)
    metadata = read()
    hub.requests.clear()
    fetch(metadata)
    assert gets(hub, SHARDS[1]) == 0
    assert gets(hub, SHARDS[2]) > 0


def test_an_interruption_keeps_finished_shards(hub, commit):
    metadata = read()
    hub.fail(SHARDS[2], status=404, times=100)
    hub.fail(SHARDS[2], status=404, times=100, method="HEAD")
    with pytest.raises(checkpoint.UnreachableError, match=SHARDS[2]):
        fetch(metadata)
    hub.faults.clear()
    hub.requests.clear()
    fetch(metadata)
    assert (gets(hub, SHARDS[0]), gets(hub, SHARDS[1])) == (0, 0)
    assert gets(hub, SHARDS[2]) > 0


def test_two_jobs_at_once_fetch_a_file_once(hub, commit):
    metadata = read()
    hub.requests.clear()
    with ThreadPoolExecutor(2) as jobs:
        one, other = jobs.map(fetch, [metadata, metadata])
    assert one == other
    assert [gets(hub, f"/store/{REPO}/{commit}/{shard}") for shard in SHARDS] == [1, 1, 1]


def test_a_hub_that_ignores_ranges_is_told_of_not_read(hub, commit):
    hub.ranges = False
    assert refusal().endswith("the hub doesn't answer byte ranges")
    assert hub.sent("/store") < 2**20


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"cut_after": 1_000}])
def test_a_download_gets_over_faults(hub, commit, fault):
    metadata = read()
    hub.fail(f"/store/{REPO}", times=2, **fault)
    assert fetch(metadata)["status"] == "ok"


def wrong_bytes(hub: hubs.Hub, folder: Path, commit: str) -> hubs.Stored:
    """Let the hub send a file of the right size and header whose last byte is wrong."""
    stored = hub.repos[REPO][commit][SHARDS[1]]
    content = bytearray(stored.path.read_bytes())
    content[-1] ^= 0xFF
    stored.served = folder.parent / "wrong"
    stored.served.write_bytes(content)
    return stored


def test_wrong_bytes_of_the_right_size_are_fetched_again_alone(
    hub, folder, commit, monkeypatch, capfd
):
    metadata = read()
    stored = wrong_bytes(hub, folder, commit)
    say = download.say

    def repaired(text: str) -> None:
        stored.served = None
        say(text)

    monkeypatch.setattr(download, "say", repaired)
    hub.requests.clear()
    document = fetch(metadata)
    assert f"{SHARDS[1]}: right size, wrong content: sha256 " in capfd.readouterr().err
    content = (checkpoint_folder(document) / SHARDS[1]).read_bytes()
    assert content == (folder / SHARDS[1]).read_bytes()
    fetched = {shard: gets(hub, f"/store/{REPO}/{commit}/{shard}") for shard in SHARDS}
    assert fetched == {SHARDS[0]: 1, SHARDS[1]: 2, SHARDS[2]: 1}


def test_bytes_that_stay_wrong_are_no_fact_about_the_checkpoint(hub, folder, commit):
    metadata = read()
    wrong_bytes(hub, folder, commit)
    with pytest.raises(
        checkpoint.UnreachableError, match=f"{SHARDS[1]}: right size, .* twice in a row"
    ):
        fetch(metadata)


def test_a_damaged_file_in_the_cache_is_replaced(hub, folder, commit):
    metadata = read()
    snapshot = checkpoint_folder(fetch(metadata))
    blob = (snapshot / SHARDS[0]).resolve()
    blob.write_bytes(b"x" * blob.stat().st_size)
    fetch(metadata)
    assert (snapshot / SHARDS[0]).read_bytes() == (folder / SHARDS[0]).read_bytes()


def test_too_little_room_is_told_before_anything_is_fetched(hub, commit, monkeypatch):
    metadata = read()
    hub.requests.clear()
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: Usage())
    with pytest.raises(checkpoint.UnreachableError, match=r"0\.0 GiB are needed .* set HF_HOME"):
        fetch(metadata)
    assert hub.requests == []


class Usage:
    free = 1_000


def test_offline_the_cache_gives_the_same_documents(hub, commit, monkeypatch):
    online = [read(), fetch(read())]
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert [read(), fetch(read())] == online
    assert hub.requests == []


def test_offline_without_a_cache_is_one_line(hub, commit, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "not in the hub cache" in refusal()
    assert "HF_HUB_OFFLINE" in refusal()


# As a user calls it


def test_the_environment_is_honoured_by_the_command(hub, commit, tmp_path):
    hub.gated.add(REPO)
    hub.token = TOKEN
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "BRINGUP_CACHE": str(tmp_path / "fresh"),
    }
    command = [sys.executable, "-m", "bringup.formats", f"{REPO}@main", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = checked(json.loads(done.stdout))
    assert document["source"]["commit"] == commit
    assert document["observed"]["dense_mlp"]["format"] == "bf16"
    assert (tmp_path / "home/hub/models--maker--model").is_dir()
    gets_of_weights = [each.sent for each in hub.requests if each.path.endswith(".safetensors")]
    assert sum(gets_of_weights) < 1_000
