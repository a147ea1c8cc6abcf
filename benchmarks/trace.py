"""Time and memory to reduce a large profiler trace, against the JSON module on a small one.

The trace is made on the fly in the shape that Kineto writes (kernels, operators, Python frames with
their arguments), reduced in a process of its own, and deleted.

    python benchmarks/trace.py [--gb 1.0] [--gzip]

Prints one JSON object: size, seconds (wall and CPU), peak memory, and the speed as a part of what
`json.loads` does on a whole small trace on this machine at this moment.
Exit code 1 if it took more than 60 s of CPU time per GB or more than 400 MiB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MOST_SECONDS_PER_GB = 60.0
MOST_MIB = 400

KERNELS = ("fused_moe_kernel", "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN", "_fwd_kernel_stage2")


def events() -> Iterator[str]:
    """Yield events without end: of 20, 1 kernel, 2 operators, 17 Python frames."""
    number = 0
    while True:
        ts = 5113166259895.351 + 3.5 * number
        if number % 20 == 0:
            kind, name = "kernel", KERNELS[number // 20 % 3]
            args = '"device": 0, "stream": 7, "grid": [132, 1, 1], "block": [128, 1, 1]'
        elif number % 20 in (1, 2):
            kind, name = "cpu_op", "aten::mm"
            args = '"Concrete Inputs": ["", "0", "8"], "Input Dims": [[24234], [], []]'
        else:
            kind, name = "python_function", f"sglang/srt/layers/linear.py({number % 997}): forward"
            args = f'"Python parent id": {number}, "Python id": {number + 1}, "Ev Idx": {number}'
        yield (
            f'  {{\n    "ph": "X", "cat": "{kind}", "name": "{name}", "pid": 1, "tid": 1,\n'
            f'    "ts": {ts:.3f}, "dur": 2.016,\n    "args": {{\n      {args}\n    }}\n  }}'
        )
        number += 1


def write(path: Path, size: int, *, packed: bool) -> int:
    """Write a trace of ``size`` bytes before packing; return how many kernels are in it."""
    head = '{"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n  "traceEvents": [\n'
    kernels = written = 0
    with gzip.open(path, "wt", compresslevel=1) if packed else path.open("w") as stream:
        stream.write(head)
        for number, event in enumerate(events()):
            stream.write(f"{',' if number else ''}\n{event}")
            kernels += number % 20 == 0
            written += len(event) + 2
            if written >= size:
                break
        stream.write('\n  ],\n  "traceName": "synthetic"\n}\n')
    return kernels


REDUCE = """
import json, resource, sys, time
from pathlib import Path
from bringup.evidence.traces import read
began = time.monotonic()
trace = read(Path(sys.argv[1]))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "wall_s": round(time.monotonic() - began, 1),
    "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
    "peak_mib": usage.ru_maxrss // 1024,
    "kernels": sum(tally.launches for tally in trace.kernels.values()),
    "defects": trace.defects,
}))
"""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.json"
        write(small, 20_000_000, packed=False)
        began = time.process_time()
        json.loads(small.read_text())
        plain = small.stat().st_size / 1e6 / (time.process_time() - began)
        large = Path(folder) / ("large.json.gz" if options.gzip else "large.json")
        kernels = write(large, int(options.gb * 1e9), packed=options.gzip)
        answer = subprocess.run(
            [sys.executable, "-c", REDUCE, str(large)], capture_output=True, text=True, check=True
        )
    found = json.loads(answer.stdout)
    speed = options.gb * 1e3 / found["cpu_s"]
    print(
        json.dumps(
            {
                "gb": options.gb,
                "gzip": options.gzip,
                **found,
                "mb_per_cpu_s": round(speed, 1),
                "of_json_loads": round(speed / plain, 2),
            }
        )
    )
    right = found["kernels"] == kernels and not found["defects"]
    fast = found["cpu_s"] <= MOST_SECONDS_PER_GB * options.gb
    return 0 if right and fast and found["peak_mib"] <= MOST_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
