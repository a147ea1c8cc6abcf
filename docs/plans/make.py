"""Write docs/plans/*.md: the DeepSeek-V4-Flash study planned for machines that are only described.

python docs/plans/make.py
"""

import json
import shlex
from pathlib import Path

import yaml

from bringup import hardware, plan
from bringup.artifact import Document, document
from bringup.engine import removed, renamed
from bringup.routing.arguments import words

HERE = Path(__file__).resolve().parent
PARSERS = HERE.parents[1] / "tests" / "unit" / "parsers"

HEAD = """\
<!-- Written by docs/plans/make.py; edit that or study.yaml, and run it again. -->
# DeepSeek-V4-Flash on {machine}

What `snakemake plans` decides before anything is fetched, built or started, for a machine that
`hardware:` in the config describes. The builds are taken to read the checkpoints as they are.
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    study = yaml.safe_load((HERE / "study.yaml").read_text(encoding="utf-8"))
    return {
        f"{name}.md": _page(hardware.fingerprint(described), study)
        for name, described in study["machines"].items()
    }


def _page(machine: Document, study: dict) -> str:
    plans = [_plan(_entry(row, study["defaults"]), machine, study) for row in study["experiments"]]
    gpu = machine["gpus"][0]
    name = f"{len(machine['gpus'])} × {gpu['name']} ({machine['architecture']})"
    sections = [_section(each, study["sweep"]) for each in plans]
    return "\n".join([HEAD.format(machine=name), _table(plans), "", *sections])


def _entry(row: dict, defaults: dict) -> dict:
    backend = {"moe-runner-backend": row["backend"]} if "backend" in row else {}
    server = {**defaults["server"], **row.get("server", {}), **backend}
    requires = row.get("requires", defaults["requires"])
    return {**row, "server": server, "requires": requires, "env": {}}


def _plan(entry: dict, machine: Document, study: dict) -> Document:
    screened = hardware.screen(entry["requires"], machine)
    if screened:
        return plan.screened(entry, screened)
    format_file = HERE / "formats" / f"{entry['checkpoint']}.json"
    return plan.plan(
        entry,
        format=json.loads(format_file.read_text(encoding="utf-8")),
        reading=document("reading/1", verdict="agrees", message=None, fixed_by=None),
        engine=_engine(study["engines"][entry["engine"]]),
        hardware=machine,
    )


def _engine(described: dict) -> Document:
    parser = json.loads((PARSERS / f"{described['parser']}.json").read_text(encoding="utf-8"))
    return document(
        "engine/1",
        version=parser["version"],
        patches=[{"source": {"pr": number}} for number in described["pull_requests"]],
        python="python",
        pythonpath=[],
        flags=parser["flags"],
        choices=parser["choices"],
        renamed=renamed(parser["flags"]),
        removed=removed(parser["flags"]),
    )


def _table(plans: list[Document]) -> str:
    lines = ["| experiment | plan | experts' backend | KV cache | why |", "|---|---|---|---|---|"]
    for each in plans:
        experts = each["backend"].get("experts", {})
        tokens = each["fit"]["kv_tokens"] if each["fit"] and each["status"] == "ok" else None
        why = each["reason"]["message"] if each["reason"] else experts["why"]
        cells = (
            f"`{each['experiment']}`",
            each["status"],
            experts.get("chosen", "–"),
            f"{tokens:,} tokens" if tokens else "–",
            why.replace("|", "\\|"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _section(plan_: Document, sweep: dict) -> str:
    lines = [f"## {plan_['experiment']}: {plan_['status']}", ""]
    if plan_["reason"]:
        lines += [f"**{plan_['reason']['class']}**: {plan_['reason']['message']}", ""]
        lines += [f"- source: {source}" for source in plan_["reason"]["evidence"]]
        lines += [f"- hint: {plan_['reason']['hint']}"] if plan_["reason"]["hint"] else []
    if plan_["status"] == "ok":
        lines += ["```", _command(plan_), "```", ""]
        lines += ["| argument | by | why |", "|---|---|---|"]
        lines += [
            f"| `{' '.join(words(flag['flag'], flag['value']))}` | {flag['by']} | {flag['why']} |"
            for flag in plan_["flags"]
        ]
        lines += ["", *_backend(plan_), _memory(plan_["fit"]), _room(plan_, sweep)]
        warnings = [*plan_["warnings"], *plan.sweep_warnings(plan_, sweep)]
        lines += [f"- warning, {each['class']}: {each['message']}" for each in warnings]
        lines += [f"- note, {each['class']}: {each['message']}" for each in plan_["notes"]]
    return "\n".join([*lines, ""])


def _command(plan_: Document) -> str:
    command = [plan_["python"], *plan_["argv"]]
    return " ".join(
        each if each in ("{model}", "{port}") else shlex.quote(each) for each in command
    )


def _backend(plan_: Document) -> list[str]:
    experts = plan_["backend"]["experts"]
    lines = [f"- experts ({experts['format']}): {experts['chosen']} (known: {experts['known']})"]
    if experts["automatic"]:
        own = experts["automatic"]
        lines.append(
            f"- by itself this build takes {own['backend']} (known here: {own['known']}): "
            + own["why"]
        )
    lines += [f"- source: {source}" for source in experts["source"]]
    return [*lines, *(_attention(each) for each in [plan_["backend"].get("attention")] if each)]


def _attention(attention: Document) -> str:
    return (
        f"- attention ({attention['format']} KV cache): {attention['chosen']} "
        f"(known: {attention['known']}): {attention['why'] or 'nothing is known of it'}"
    )


def _memory(fit: Document) -> str:
    return (
        f"- memory of a GPU: {fit['weights_gib']} GiB of weights and {fit['kv_gib']} GiB of KV "
        f"cache in {fit['mem_fraction_static']:g} of {fit['usable_gib']} GiB; "
        f"{fit['left_gib']} GiB are left to activations and graphs"
    )


def _room(plan_: Document, sweep: dict) -> str:
    tokens = sweep["input_tokens"] + sweep["output_tokens"]
    at_once = plan.largest_concurrency(plan_, tokens)
    return f"- requests of {tokens} tokens that run at once: {at_once or 'not known'}"


def main() -> None:
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
