"""YAML as people mean it: what YAML reads differently from how it looks is an error, with a line.

YAML 1.1 takes ``on:`` for a boolean key, ``1.0:`` for a number, ``1e-4`` for text, and lets the
last of two equal keys win in silence.  Each of these has cost somebody a benchmark.  A value that
begins with ``~/`` lies below the home folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Path_ = tuple[str | int, ...]
"""Where a value stands: the keys and indices that lead to it."""

LOOKS_LIKE_A_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
MERGE_TAG = "tag:yaml.org,2002:merge"


class ConfigError(ValueError):
    """The config can't be used.  One line a problem, each complete in itself."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class Source:
    """A config file as read: its data, and the line of every value in it."""

    name: str
    data: dict[str, Any]
    lines: dict[Path_, int]

    def problem(self, path: Path_, message: str) -> str:
        """Return one line that says what is wrong at ``path``, or at the nearest place above it."""
        line = next(self.lines[above] for above in _upwards(path) if above in self.lines)
        where = ".".join(str(step) for step in path)
        return f"{self.name}:{line}: {where + ': ' if where else ''}{message}"


def read(path: Path) -> Source:
    """Read a YAML file strictly.

    Raises:
        ConfigError: it is missing, empty, no YAML, no mapping, or holds one of YAML's surprises.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file; start from the example in config/"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: can't be read as UTF-8 text: {error}"]) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Source:
    """Parse YAML ``text``; see :func:`read`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(text, name, error)]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{name}: {' '.join(str(error).split())}"]) from None
    if root is None:
        raise ConfigError([f"{name}:1: is empty; it needs checkpoints, engines and experiments"])
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError([f"{name}:1: must be a mapping with checkpoints, engines, experiments"])
    builder = _Builder(name)
    data = builder.build(root, ())
    if builder.problems:
        raise ConfigError(builder.problems)
    return Source(name, data, builder.lines)


def _syntax_problem(text: str, name: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line][: len(lines[line]) - len(lines[line].lstrip())]:
        return f"{name}:{line + 1}: a tab in the indentation; YAML wants spaces"
    return f"{name}:{line + 1}: not YAML: {' '.join(str(error.problem or error.context).split())}"


def _upwards(path: Path_) -> Iterator[Path_]:
    for length in range(len(path), -1, -1):
        yield path[:length]


class _Builder:
    """Turns YAML's nodes into plain data, keeping lines and collecting surprises."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Path_, int] = {}
        self.problems: list[str] = []
        self._loader = yaml.SafeLoader("")
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: Path_) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if id(node) in self._open:
            self._report(node, path, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        self._report_repeated(node, path)
        self._loader.flatten_mapping(node)
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is not None:
                built[key] = self.build(value_node, (*path, key))
                self.lines[(*path, key)] = key_node.start_mark.line + 1
        return built

    def _report_repeated(self, node: yaml.MappingNode, path: Path_) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            text = str(key_node.value)
            if key_node.tag != MERGE_TAG and text in seen:
                self._report(key_node, path, f"{text!r} stands twice (first in line {seen[text]})")
            seen.setdefault(text, key_node.start_mark.line + 1)

    def _key(self, node: yaml.Node, path: Path_) -> str | None:
        value = node.value
        if isinstance(node, yaml.ScalarNode) and isinstance(value, str):
            if node.tag == "tag:yaml.org,2002:str":
                return value
            read_as = self._loader.construct_object(node)
            self._report(node, path, f"YAML reads the key {value} as {read_as!r}; write '{value}'")
        else:
            self._report(node, path, "a key must be text")
        return None

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self._report(node, path, f"can't be read: {' '.join(str(error).split())}")
            return None
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if plain and isinstance(value, str) and LOOKS_LIKE_A_NUMBER.fullmatch(value):
            right = f"{float(value):g}" if "e" not in f"{float(value):g}" else _dotted(value)
            self._report(node, path, f"YAML reads {value} as text; write {right}")
        if value is not None and not isinstance(value, bool | int | float | str):
            self._report(node, path, f"YAML reads {node.value} as a date; write '{node.value}'")
        if isinstance(value, str) and value.startswith("~/"):
            return str(Path(value).expanduser())  # as a shell would read it
        return value

    def _report(self, node: yaml.Node, path: Path_, message: str) -> None:
        where = ".".join(str(step) for step in path)
        line = node.start_mark.line + 1
        self.problems.append(f"{self.name}:{line}: {where + ': ' if where else ''}{message}")


def _dotted(number: str) -> str:
    """Write ``1e-4`` so that YAML 1.1 reads a number: with a dot and a signed exponent."""
    digits, exponent = re.split("[eE]", number)
    digits = digits if "." in digits else f"{digits}.0"
    return f"{digits}e{exponent if exponent[0] in '+-' else '+' + exponent}"
