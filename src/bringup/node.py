"""Is this node what a job was sent for?  Asked on the node, before anything is run there.

    python -m bringup.node --kind h100 --gpus 4 --sent 1764450000.0 --nodes nodes.yaml

Exit code 0: yes; 1: no, and one line says why; 2: the table of nodes can't be used.
"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

import yaml

from bringup import cluster, hardware
from bringup.resident.home import run_folder


def main() -> int:
    """Look at the clock, at where locks would lie, and at the GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--sent", type=float, required=True)
    parser.add_argument("--nodes", type=Path, nargs="+", required=True)
    given = parser.parse_args()
    try:
        table = yaml.safe_load(given.nodes[0].read_text(encoding="utf-8"))["nodes"]
        kind = cluster.load(table, file=str(given.nodes[0])).kinds[given.kind]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        print(f"{given.nodes[0]}: {error}", file=sys.stderr)
        return 2
    complaint = (
        cluster.late(given.sent)
        or cluster.shared(run_folder())
        or cluster.strangeness(kind, hardware.fingerprint(), given.gpus)
    )
    if complaint:
        print(f"node {socket.gethostname()}: {complaint}", file=sys.stderr)
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
