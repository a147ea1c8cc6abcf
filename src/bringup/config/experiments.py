"""Resolve the config into experiments: defaults merged, matrices expanded, references checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bringup.config import schema as checks
from bringup.config.merge import canonical, combinations, matches, merged, without_nulls
from bringup.config.source import ConfigError, Path_, Source, read
from bringup.paths import PROJECT
from bringup.redact import SECRET_NAME

SCHEMA = PROJECT / "workflow" / "schemas" / "config.schema.yaml"

SUITES = Path("resources/probes")
"""Where probe suites stand, relative to the working directory."""

SHORT_FLAGS = {"backend": "moe-runner-backend"}
"""Short names of server arguments, in the config only."""

ENTRIES = ("checkpoint", "engine")
"""What a matrix may vary besides server arguments."""

ROLES = {
    "checkpoint": "checkpoint",
    "draft": "checkpoint",
    "engine": "engine",
    "baseline": "experiment",
    "reference": "experiment",
}
"""What the value of a key names."""

SEPARATOR = "--"
"""Stands between the parts of a name that a matrix made; nobody else may use it."""

NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Entry = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """A checked config.  Entries are canonical: equal content, equal text."""

    checkpoints: dict[str, Entry]
    engines: dict[str, Entry]
    experiments: dict[str, Entry]
    """Resolved: ``name, study, checkpoint, engine, requires, server, env, probes, sweep`` and,
    where given, ``baseline, reference, draft, force, accept_conflict, accept_misreading`` and
    ``varied``."""
    hardware: Entry | None

    def studies(self) -> list[str]:
        """Return the names of the studies, in the order of the file."""
        return list(dict.fromkeys(entry["study"] for entry in self.experiments.values()))

    def only(self, study: str) -> Config:
        """Return this config narrowed to one study.

        Raises:
            ConfigError: there is no such study.
        """
        if study not in self.studies():
            near = checks.closest(study, self.studies())
            known = near or f"; there are: {', '.join(self.studies())}"
            raise ConfigError([f"--config study={study}: no experiment has this study{known}"])
        chosen = {n: entry for n, entry in self.experiments.items() if entry["study"] == study}
        return Config(self.checkpoints, self.engines, chosen, self.hardware)


Backends = Callable[[Entry | None], Iterable[str]]
"""Given ``hardware:`` of the config, if it is there, returns what ``backend: all`` stands for."""


def load(path: Path, *, backends: Backends, made: Container[str] = ()) -> Config:
    """Read, check and resolve the config at ``path``.

    Args:
        path: the YAML file; paths in it are relative to the working directory.
        backends: is called if ``backend: all`` is used.
        made: folders of checkpoints that the workflow makes itself, so they may not exist yet.

    Raises:
        ConfigError: with every problem found, one line each.
    """
    source = read(path)
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    _raise(source, checks.problems(without_nulls(source.data), schema))
    _raise(source, _double_flags(source.data))
    _raise(source, _open_secrets(source.data))
    _raise(source, _wrong_matrices(source.data))
    expanded = list(_expanded(source.data, backends))
    _raise(source, _wrong_expansions(source.data, expanded))
    complete = [
        (written, checks.with_defaults(entry, schema, "resolved")) for written, entry in expanded
    ]
    _raise(source, _wrong_entries(source.data, complete, schema))
    _raise(source, _missing_files(source.data, complete, made))
    return Config(
        checkpoints=canonical(without_nulls(source.data["checkpoints"])),
        engines=canonical(without_nulls(source.data["engines"])),
        experiments={entry["name"]: canonical(entry) for _, entry in complete},
        hardware=canonical(source.data.get("hardware")),
    )


def _raise(source: Source, found: Iterable[checks.Problem]) -> None:
    problems = list(dict.fromkeys(source.problem(path, message) for path, message in found))
    if problems:
        raise ConfigError(problems)


def _double_flags(data: Entry) -> Iterator[checks.Problem]:
    """Find server arguments that are given by their short and their long name at once."""
    for path, entry in _places(data):
        for short, long in SHORT_FLAGS.items():
            if {short, long} <= set(entry.get("server") or {}):
                message = f"is short for {long}, which stands here too; keep one of the two"
                yield (*path, "server", short), message


def _open_secrets(data: Entry) -> Iterator[checks.Problem]:
    """Find secrets that stand in the file itself, which people share."""
    for path, entry in _places(data):
        for section in ("server", "env"):
            for name, value in (entry.get(section) or {}).items():
                if isinstance(value, str) and SECRET_NAME.search(name):
                    variable = name.upper().replace("-", "_")
                    message = f"a secret doesn't belong here; right: {{secret: {variable}}}"
                    yield (*path, section, name), f"{message}, and export {variable}"


def _places(data: Entry) -> Iterator[tuple[Path_, Entry]]:
    """Yield where experiments' settings stand, and the settings."""
    yield ("defaults",), data.get("defaults") or {}
    for name, own in data["experiments"].items():
        yield ("experiments", name), own or {}


def _wrong_matrices(data: Entry) -> Iterator[checks.Problem]:
    for name, own in data["experiments"].items():
        matrix = (own or {}).get("matrix", {})
        path = ("experiments", name)
        for key, values in matrix.items():
            if values == "all" and key != "backend":
                yield (*path, "matrix", key), "all is for backend; right: a list of values"
        for index, pattern in enumerate((own or {}).get("exclude", [])):
            for key, value in pattern.items():
                values = matrix.get(key, [])
                if values != "all" and value not in values:
                    message = f"leaves out {key}: {value}, which the matrix doesn't have"
                    yield (*path, "exclude", index), message + checks.closest(str(value), values)


def _expanded(data: Entry, backends: Backends) -> Iterator[tuple[str, Entry]]:
    """Yield (name in the file, experiment) for every experiment and matrix combination."""
    defaults = _spelled_out(data.get("defaults") or {})
    for written, own in data["experiments"].items():
        entry = {"name": written, **merged(defaults, _spelled_out(own or {}))}
        matrix, exclude = entry.pop("matrix", {}), entry.pop("exclude", [])
        fields = {
            key: list(backends(data.get("hardware"))) if values == "all" else values
            for key, values in matrix.items()
        }
        for choice in combinations(fields):
            if not any(matches(choice, pattern) for pattern in exclude):
                yield written, _chosen(entry, choice)


def _spelled_out(entry: Entry) -> Entry:
    """Return ``entry`` with short names of server arguments, and secrets, written as plans do."""
    spelled = dict(entry)
    if entry.get("server"):
        spelled["server"] = {
            SHORT_FLAGS.get(flag, flag): _reference(value)
            for flag, value in entry["server"].items()
        }
    if entry.get("env"):
        spelled["env"] = {name: _variable(value) for name, value in entry["env"].items()}
    return spelled


def _reference(value: Any) -> Any:
    """Return ``{secret: NAME}`` as the reference that documents hold, anything else as it is."""
    if isinstance(value, dict) and set(value) == {"secret"}:
        return f"{{secret:{value['secret']}}}"
    return value


def _variable(value: Any) -> Any:
    """Return an environment variable's value as text; None deletes it."""
    return value if value is None else str(_reference(value))


def _chosen(entry: Entry, choice: Entry) -> Entry:
    """Return the experiment of one matrix combination, named after its values."""
    if not choice:
        return entry
    words = [str(v).lower() if isinstance(v, bool) else str(v) for v in choice.values()]
    own = {key: value for key, value in choice.items() if key in ENTRIES}
    server = {SHORT_FLAGS.get(k, k): value for k, value in choice.items() if k not in ENTRIES}
    return {
        **entry,
        **own,
        "name": SEPARATOR.join([entry["name"], *words]),
        "server": {**entry.get("server", {}), **server},
        "varied": choice,
    }


def _wrong_expansions(data: Entry, expanded: list[tuple[str, Entry]]) -> Iterator[checks.Problem]:
    """Find matrices that leave nothing over, and values that can't be part of a name."""
    left = {written for written, _ in expanded}
    for written in data["experiments"]:
        if written not in left:
            yield ("experiments", written, "exclude"), "leaves out every combination"
    for written, entry in expanded:
        for key, value in entry.get("varied", {}).items():
            if isinstance(value, str) and not NAME_PART.fullmatch(value):
                message = f"{value!r} can't be part of an experiment's name"
                yield ("experiments", written, "matrix", key), message


def _wrong_entries(
    data: Entry, complete: list[tuple[str, Entry]], schema: Entry
) -> Iterator[checks.Problem]:
    """Hold every resolved experiment against the schema and against what it refers to."""
    part = {**schema["$defs"]["resolved"], "$defs": schema["$defs"]}
    names = [entry["name"] for _, entry in complete]
    studies = {entry["name"]: entry["study"] for _, entry in complete}
    for written, entry in complete:
        place: Path_ = ("experiments", written)
        for path, message in checks.problems(entry, part):
            yield (*place, *path), message
        for key, known in (
            ("checkpoint", data["checkpoints"]),
            ("draft", data["checkpoints"]),
            ("engine", data["engines"]),
            ("baseline", names),
            ("reference", names),
        ):
            if key == "reference" and is_recorded(entry.get(key, "")):
                if not Path(entry[key]).is_file():
                    yield (*place, key), f"no file {entry[key]}"
            elif key in entry and entry[key] not in known:
                near = checks.closest(entry[key], known) or f"; there are: {', '.join(known)}"
                yield (*place, key), f"there is no {ROLES[key]} {entry[key]!r}{near}"
        for key in ("baseline", "reference"):
            if entry.get(key) == entry["name"]:
                yield (*place, key), "is the experiment itself; name another one"
        if studies.get(entry.get("reference"), entry["study"]) != entry["study"]:
            yield (*place, "reference"), "is of another study; name one of the same"


def is_recorded(reference: str) -> bool:
    """Tell whether a `reference` is a recorded ``predictions.json``, not an experiment's name."""
    return reference.endswith(".json")


def _missing_files(
    data: Entry, complete: list[tuple[str, Entry]], made: Container[str]
) -> Iterator[checks.Problem]:
    for name, checkpoint in data["checkpoints"].items():
        path = checkpoint.get("path")
        if path and path not in made and not Path(path).is_dir():
            yield ("checkpoints", name, "path"), f"no folder {path}"
    for name, engine in data["engines"].items():
        for index, patch in enumerate(engine.get("patches") or []):
            if "file" in patch and not Path(patch["file"]).is_file():
                yield ("engines", name, "patches", index, "file"), f"no file {patch['file']}"
    for written, entry in complete:
        benchmarks = entry.get("accuracy", {})
        if "python" in benchmarks and not Path(benchmarks["python"]).is_file():
            yield (
                ("experiments", written, "accuracy", "python"),
                f"no file {benchmarks['python']}; make an environment that has lm-eval",
            )
        if "folder" in benchmarks and not Path(benchmarks["folder"]).is_dir():
            yield (
                ("experiments", written, "accuracy", "folder"),
                f"no folder {benchmarks['folder']}",
            )
        for suite in entry["probes"]["suites"]:
            if not suite_file(suite).is_file():
                known = sorted(path.stem for path in suite_file(suite).parent.glob("*.yaml"))
                near = checks.closest(suite, known) or f"; there are: {', '.join(known)}"
                place = ("experiments", written, "probes", "suites")
                yield place, f"no file {suite_file(suite)}{near}"


def suite_file(suite: str) -> Path:
    """Return where the probe suite of that name stands."""
    return SUITES / f"{suite}.yaml"
