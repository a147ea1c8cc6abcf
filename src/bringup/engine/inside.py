# mypy: disable-error-code="import-not-found"
"""The program that an engine's own interpreter runs: it answers questions about that SGLang.

It needs nothing but the standard library and SGLang (0.5.13.post1 and 0.5.23 were tried), is run
as a file with ``--socket PATH``, and stays: SGLang is imported once, and each request is answered
by a fork, so that neither memory, nor open connections, nor a checkpoint's own code stay behind.
A client that goes away ends its fork.

CUDA can't be used in a fork of a process that has looked for GPUs, and importing SGLang looks.
With ``--apart`` (for hosts that have them) a new interpreter answers what may use one.

A request is a JSON object on one line with ``command`` and ``log``, the file for what is printed
meanwhile.  The answer is one line too: ``{"ok": true, …}`` or ``{"ok": false, "error": …,
"output": last lines}``.  Commands:

``inspect``  {markers: [{file, text}, …]} → what this build is and accepts
``locate``   {markers} → which package is imported, without importing it
``read``     {folder, trust_remote_code} → how its config classes read a checkpoint's metadata
``bench``    {argv: [argument, …], output: file} → runs its load client (`bringup.load.client`)
``warm``     imports what ``bench`` needs, so that no measurement waits for it
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

TAIL_LINES = 20
"""Lines of a failed command's output that go into the answer."""

LOAD_CLIENT = Path(__file__).parents[1] / "load" / "client.py"

CONFIG_FIELDS = ("group_size", "kv_cache_quant_algo", "kv_cache_scheme", "weight_block_size")
"""Attributes of a build's quantization config that say how weights and KV cache are stored."""


def inspect(request: dict[str, Any]) -> dict[str, Any]:
    """Tell version, place, tree hash, packages, CUDA, accepted choices and flags of this build."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = {
        option[2:]: action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    choices = {
        flag: sorted(each for each in action.choices if isinstance(each, str))
        for flag, action in flags.items()
        if action.choices
    }
    installed = packages()
    return {
        **locate(request),
        "version": sglang.__version__,
        "freeze": freeze_hash(installed),
        "packages": installed,
        "torch_cuda": torch_cuda(),
        "choices": {flag: values for flag, values in choices.items() if values},
        "flags": sorted(set(flags) - {"help"}),
    }


def locate(request: dict[str, Any]) -> dict[str, Any]:
    """Tell which package would be imported, and which markers are in it; nothing is imported."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'sglang'")
    root = Path(spec.origin).parent
    return {
        "file": spec.origin,
        "tree": tree_hash(root),
        "markers": [has_marker(root, each) for each in request["markers"]],
    }


def tree_hash(root: Path) -> str:
    """Return the SHA-256 over the names and contents of all Python files below ``root``."""
    tree = hashlib.sha256()
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")):
        content = hashlib.sha256((root / name).read_bytes()).hexdigest()
        tree.update(f"{content}  {name}\n".encode())
    return tree.hexdigest()


def packages() -> dict[str, str]:
    """Return all installed packages with their versions; of two of one name, the one imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        found.setdefault(name, distribution.version)
    return dict(sorted(found.items()))


def freeze_hash(installed: dict[str, str]) -> str:
    """Return the SHA-256 of the sorted ``name==version`` lines of all installed packages."""
    lines = sorted(f"{name}=={version}" for name, version in installed.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def torch_cuda() -> str | None:
    """Return the CUDA release that the imported torch was built with; None without CUDA."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, "cuda", None)


def has_marker(root: Path, marker: dict[str, str]) -> bool:
    """Tell whether the imported package's file holds the line that a patch put there."""
    file = root / marker["file"]
    if not file.is_file():
        return False
    lines = file.read_text(encoding="utf-8").splitlines()
    return any(line.strip() == marker["text"] for line in lines)


def read(request: dict[str, Any]) -> dict[str, Any]:
    """Let the build's own classes read a checkpoint's metadata; no weights, no GPU.

    An exception of theirs is an answer: ``{error: {type, message}}`` beside what was read so far.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS
    from sglang.srt.utils import is_cuda

    folder = request["folder"]
    reading: dict[str, Any] = {
        "error": None,
        "config": None,
        "cuda": bool(is_cuda()),
        "registered": sorted(QUANTIZATION_METHODS),
    }
    model = ModelConfig.__new__(ModelConfig)
    try:
        model.__init__(folder, trust_remote_code=request["trust_remote_code"])
        if model.quantization:
            reading["config"] = quantization_config(model)
    except Exception as error:  # whatever a checkpoint makes it raise is what we came for
        traceback.print_exc()
        reading["error"] = {"type": type(error).__name__, "message": str(error)}
    hf_config = getattr(model, "hf_config", None)
    architectures = list(getattr(hf_config, "architectures", None) or [])
    return {
        **reading,
        "quantization": getattr(model, "quantization", None),
        "declared": declared(model),
        "nvfp4_moe": getattr(model, "nvfp4_moe_meta", None),
        "fp4_experts": bool(getattr(model, "is_fp4_experts", False)),
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch.") or None,
        "architectures": architectures,
        "architecture_known": bool(architectures) and any(map(has_model_class, architectures)),
    }


def quantization_config(model: Any) -> dict[str, Any]:
    """Return what the build's loader makes of the quantization: its class, its main fields."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.weight_utils import get_quant_config

    config = get_quant_config(model, LoadConfig(), {})
    fields = {name: getattr(config, name, None) for name in CONFIG_FIELDS}
    layers = getattr(config, "quantized_layers", None)
    return {"class": type(config).__name__, **fields, "quantized_layers": layers}


def declared(model: Any) -> dict[str, Any] | None:
    """Return the quantization section as the build parsed it, or None."""
    try:
        section: dict[str, Any] | None = model._parse_quant_hf_config()
        return section
    except Exception:  # its configuration could not be read at all: the error is told already
        return None


def has_model_class(architecture: str) -> bool:
    """Tell whether this build has a model class of that name; no model is imported for it."""
    import sglang

    models = Path(sglang.__file__).parent / "srt" / "models"
    wanted = f"\nclass {architecture}("
    return any(wanted in path.read_text(encoding="utf-8") for path in models.rglob("*.py"))


def bench(request: dict[str, Any]) -> dict[str, Any]:
    """Run the build's load client with ``argv``; what it saw goes to the file ``output``."""
    load_client().run(request["argv"], request["output"])
    return {}


@cache
def load_client() -> Any:
    """Return our driver of the load client, by its place: nothing of ours is installed here."""
    spec = importlib.util.spec_from_file_location("bringup_load_client", LOAD_CLIENT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def warm(request: dict[str, Any]) -> dict[str, Any]:
    """Answer when the imports are done: `prepare` has made them."""
    return {}


def prepare(command: str) -> None:
    """Import what ``command`` needs: before the fork, so that it is there for the next one too."""
    if command in ("bench", "warm"):
        load_client().warm()
    for module in NEEDS.get(command, ()):
        importlib.import_module(module)


COMMANDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "inspect": inspect,
    "locate": locate,
    "read": read,
    "bench": bench,
    "warm": warm,
}

NEEDS = {
    "inspect": ["sglang.srt.server_args"],
    "read": [
        "sglang.srt.configs.model_config",
        "sglang.srt.configs.load_config",
        "sglang.srt.model_loader.weight_utils",
    ],
}
"""What commands import of SGLang."""

LOOK_AT_GPUS = ("inspect", "read")

NEXT = {"inspect": ("read", "warm")}
"""What follows a command before anything is measured, so that it may be imported right after it."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, with everything that is printed meanwhile in its log."""
    log = Path(request["log"])
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for descriptor in (1, 2):
        os.dup2(stream, descriptor)
    try:
        return {"ok": True, **COMMANDS[request["command"]](request)}
    except BaseException as error:
        traceback.print_exc()
        flush()
        message = str(error) or type(error).__name__
        return {"ok": False, "error": message, "output": tail(log)}
    finally:
        flush()


def flush() -> None:
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def tail(log: Path) -> list[str]:
    """Return the last lines of a log."""
    return log.read_text(errors="replace").splitlines()[-TAIL_LINES:]


def serve(path: Path, *, apart: bool) -> None:
    """Answer requests on a Unix socket, each in a fork, until the process is ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended forks need no reaping
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(64)
        while True:
            client, _ = listener.accept()
            with client:
                take(client, listener, apart=apart)


def take(client: socket.socket, listener: socket.socket, *, apart: bool) -> None:
    """Read one request, import what it needs, and leave the answer to a fork."""
    with client.makefile("r", encoding="utf-8") as lines:
        line = lines.readline()
    if not line:
        return
    try:
        request = json.loads(line)
        apart = apart and request["command"] in LOOK_AT_GPUS
        if not apart:
            prepare(request["command"])
    except Exception as error:
        traceback.print_exc()
        send(client, {"ok": False, "error": f"{type(error).__name__}: {error}", "output": []})
        return
    if os.fork() == 0:
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            if apart:
                become_another(client, line)
            reply(client, request)
        finally:
            os._exit(1)
    for command in NEXT.get(request["command"], ()):
        if not (apart and command in LOOK_AT_GPUS):
            with contextlib.suppress(Exception):  # who asks for it is told
                prepare(command)


def become_another(client: socket.socket, line: str) -> None:
    """Go on as a new interpreter, which answers the request."""
    os.set_inheritable(client.fileno(), True)
    program = str(Path(__file__).absolute())
    arguments = ["--answer", line, "--client", str(client.fileno())]
    os.execv(sys.executable, [sys.executable, program, *arguments])


def reply(client: socket.socket, request: dict[str, Any]) -> None:
    """Answer a request, and end this process."""
    threading.Thread(target=end_with, args=(client,), daemon=True).start()
    send(client, answer(request))
    os._exit(0)


def end_with(client: socket.socket) -> None:
    """End this process, and all that it started, when its client goes away."""
    os.setpgid(0, 0)
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def send(client: socket.socket, reply: dict[str, Any]) -> None:
    """Send one answer; a client that has gone away misses nothing."""
    with contextlib.suppress(BrokenPipeError):
        client.sendall(json.dumps(reply, default=str).encode() + b"\n")


def main() -> None:
    """Serve, or answer the one request that another such process has taken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--edition", help="of this program; tells its processes apart")
    parser.add_argument("--answer", type=json.loads)
    parser.add_argument("--client", type=int)
    given = parser.parse_args()
    del sys.path[0]  # this file's neighbours are not modules of the engine
    if given.answer:
        reply(socket.socket(fileno=given.client), given.answer)
    serve(given.socket, apart=given.apart)


if __name__ == "__main__":
    main()
