"""Run load clients for the benchmark, inside the interpreter of an SGLang build.

One request a line on standard input, ``{"client": name, "argv": […], "output": path}``; an empty
line's worth of JSON comes back when it is done.  The client modules are imported once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

CLIENT = Path(__file__).resolve().parents[2] / "src" / "bringup" / "load" / "client.py"


def load_client() -> Any:
    """Return the module that runs and records SGLang's client."""
    spec = importlib.util.spec_from_file_location("bringup_load_client", CLIENT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the clients print their own reports
    client = load_client()
    client.warm()
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            client.run(request["argv"], request["output"])
            answer = {}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
