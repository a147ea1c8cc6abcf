"""Real SGLang for tests: made below BRINGUP_CACHE, or .cache, where it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bringup import artifact, engine, paths


@pytest.fixture(scope="session")
def build_engine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., artifact.Document]]:
    """Return a function that builds a release of SGLang, patched or not, for the CPU, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "BRINGUP_CACHE", os.environ.get("BRINGUP_CACHE") or str(paths.PROJECT / ".cache")
        )
        patch.chdir(paths.PROJECT)

        built: dict[str, artifact.Document] = {}

        def build(version: str, *patches: dict[str, Any]) -> artifact.Document:
            entry = {"version": version, "patches": list(patches)}
            if str(entry) not in built:
                built[str(entry)] = made(entry)
            return built[str(entry)]

        def made(entry: dict[str, Any]) -> artifact.Document:
            log = tmp_path_factory.mktemp("engine") / "engine.log"
            document = engine.build(entry, engine_name="real", cuda=False, log=log)
            assert document["status"] == "ok", document["reason"]
            return document

        yield build


@pytest.fixture(scope="session")
def real_engine(build_engine: Callable[..., artifact.Document]) -> artifact.Document:
    """The engine document of the release that the project uses by default."""
    return build_engine("0.5.23")
