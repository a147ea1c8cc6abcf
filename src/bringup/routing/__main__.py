"""Ask the routing table: which backends run a format on a GPU, ranked, with reasons and sources.

``python -m bringup.routing --format nvfp4 --architecture DeepseekV4ForCausalLM --gpu sm120
--sglang 0.5.23`` ends with 0 if a backend is known to work, 1 if none is, 2 on bad input.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Collection, Iterator, Sequence

from bringup import routing
from bringup.routing import versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ranked backends; return the exit code."""
    asked = _parser().parse_args(arguments)
    problem = _problem(asked)
    if problem:
        print(f"bringup.routing: {problem}", file=sys.stderr)
        return 2
    situation = (asked.format, asked.module, asked.architecture, asked.gpu, asked.sglang)
    ranked = routing.rank(*situation, patches=asked.patch)
    if asked.json:
        print(json.dumps(ranked, indent=2, ensure_ascii=False))
    else:
        own = routing.automatic(*situation, patches=asked.patch)
        print("\n".join(_lines(asked, ranked, own)))
    return 0 if any(row["verdict"] in routing.GOOD for row in ranked) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bringup.routing", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "--format",
        required=True,
        help="nvfp4, mxfp4, fp8-block, …; for attention the KV cache's: bf16, fp8, nvfp4",
    )
    parser.add_argument("--gpu", required=True, help="sm90, sm120, …, or cpu")
    parser.add_argument("--sglang", required=True, help="version of the build, like 0.5.23")
    parser.add_argument("--architecture", help="the model's, like DeepseekV4ForCausalLM")
    parser.add_argument("--module", default="experts", help=f"{', '.join(routing.MODULES)}")
    parser.add_argument(
        "--patch",
        type=int,
        action="append",
        default=[],
        metavar="PR",
        help="a pull request that the build has beyond its version; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the document")
    return parser


def _problem(asked: argparse.Namespace) -> str | None:
    for option, value, known in _limits(asked):
        if value not in known:
            return f"{option} {value}: {_choose(value, known)}"
    if versions.parse(asked.sglang) is None:
        return f"--sglang {asked.sglang}: is no version; right: 0.5.23, 0.5.13.post1"
    return None


def _limits(asked: argparse.Namespace) -> Iterator[tuple[str, str, Collection[str]]]:
    yield "--module", asked.module, routing.MODULES
    yield "--format", asked.format, routing.formats(asked.module)
    yield "--gpu", asked.gpu, routing.architectures()


def _choose(value: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(value, known, n=1)
    return f"unknown; did you mean {near[0]}?" if near else f"unknown; known: {', '.join(known)}"


def _lines(
    asked: argparse.Namespace, ranked: list[routing.Row], own: routing.Row | None
) -> list[str]:
    model = asked.architecture or "any model"
    head = f"{asked.format} {asked.module} of {model} on {asked.gpu}, SGLang {asked.sglang}"
    if not ranked:
        return [f"{head}: nothing is known"]
    lines = [f"{head}:"]
    for row in ranked:
        lines.append(f"  {row['backend']:26} {row['verdict']}")
        lines.append(f"      {row['reason']}")
        lines += [f"      source: {source}" for source in row["sources"]]
    if own:
        lines.append(f"By itself this build takes {own['backend']}: {own['reason']}.")
        lines += [f"      source: {source}" for source in own["sources"]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
