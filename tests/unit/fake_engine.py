"""An interpreter with a package that answers like SGLang where engines and readings look."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path

FILES = {
    "__init__.py": '__version__ = "0.5.23"\n',
    "srt/server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path")
        parser.add_argument("--tensor-parallel-size", "--tp", type=int)
        parser.add_argument("--moe-runner-backend", choices=["triton", "auto", "marlin"])
        parser.add_argument("--quantization", choices=["fp8", "mxfp4"])
        parser.add_argument("--cuda-graph-max-bs-decode", type=int)
""",
    "srt/utils.py": "def is_cuda():\n    return False\n",
    "srt/layers/quantization/__init__.py": 'QUANTIZATION_METHODS = {"fp8": object}\n',
    "srt/configs/load_config.py": "class LoadConfig:\n    pass\n",
    "srt/configs/model_config.py": """
import json, os

class ModelConfig:
    def __init__(self, model_path, trust_remote_code):
        print("reading", model_path)
        with open(os.path.join(model_path, "config.json")) as stream:
            self.given = json.load(stream)
        self.hf_config = type("Config", (), self.given)
        self.dtype = "torch.bfloat16"
        if "dies" in self.given:
            os._exit(9)
        if "raises" in self.given:
            raise ValueError(self.given["raises"])
        self.quantization = self.given.get("method")
        self.nvfp4_moe_meta = self.given.get("nvfp4")
        self.is_fp4_experts = False

    def _parse_quant_hf_config(self):
        return self.given.get("quantization_config")
""",
    "srt/model_loader/weight_utils.py": """
class Config:
    kv_cache_quant_algo = "FP8"

def get_quant_config(model, load, packed):
    return Config()
""",
    "srt/models/qwen3_moe.py": "\nclass Qwen3MoeForCausalLM(object):\n    pass\n",
    "bench_serving.py": """
import asyncio, os, sys, time

class Seen:
    success, error, start_time = True, "", 0.0
    prompt_len, output_len, ttft, itl = 8, 2, 0.1, [0.1]

async def send(request_func_input, pbar=None):
    return Seen()

ASYNC_REQUEST_FUNCS = {"sglang": send}
get_dataset = get_tokenizer = check_chat_template = None

if __name__ == "__main__":
    print("benchmark of", sys.argv[1:])
    if "--fail" in sys.argv:
        sys.exit(3)
    if "--hang" in sys.argv:
        print("pid", os.getpid(), flush=True)
        time.sleep(600)
    asyncio.run(ASYNC_REQUEST_FUNCS["sglang"](None))
""",
    "launch_server.py": 'print("one")\nprint("two")\nprint("three")\n',
}


def make(folder: Path) -> Path:
    """Make the environment; return its interpreter."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name, content in FILES.items():
        path = site / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    info = site / "sglang-0.5.23.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    return folder / "bin" / Path(sys.executable).name


def checkpoint(folder: Path, **config: object) -> Path:
    """Write a folder with a config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
