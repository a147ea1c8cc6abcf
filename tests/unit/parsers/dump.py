"""Dump the server's argument parser of a published SGLang, for the tests of plans.

    uv pip install --no-deps --target DIR sglang==VERSION
    PYTHON dump.py DIR VERSION.json

PYTHON is an interpreter in which some SGLang imports (on a host without CUDA with the stand-in for
``sgl_kernel`` on PYTHONPATH and SGLANG_USE_CPU_ENGINE=1): the release's own requirements are not
installed.  A release may register models that the newer transformers there knows already, which
transformers refuses; here the later registration wins.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path


def registrations_may_repeat() -> None:
    mapping = importlib.import_module("transformers.models.auto.configuration_auto")

    def register(self, key, value, exist_ok=False):
        self._extra_content[key] = value

    mapping._LazyConfigMapping.register = register


def parser_of(folder: str) -> argparse.ArgumentParser:
    """Return the parser of the SGLang in ``folder``."""
    sys.path.insert(0, folder)
    registrations_may_repeat()
    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return parser


def dump(parser: argparse.ArgumentParser, version: str) -> dict:
    flags, choices = set(), {}
    for action in parser._actions:
        names = [name[2:] for name in action.option_strings if name.startswith("--")]
        flags.update(names)
        values = [each for each in action.choices or () if isinstance(each, str)]
        if values:
            choices.update(dict.fromkeys(names, values))
    return {
        "version": version,
        "flags": sorted(flags - {"help"}),
        "choices": dict(sorted(choices.items())),
    }


def main() -> None:
    folder, target = sys.argv[1:]
    parser = parser_of(folder)
    version = importlib.import_module("sglang").__version__
    text = json.dumps(dump(parser, version), separators=(",", ":"))
    Path(target).write_text(text.replace('],"', '],\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
