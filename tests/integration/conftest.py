"""Real SGLang for tests: made below BRINGUP_CACHE, or .cache, where it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from bringup import artifact, engine, paths


@pytest.fixture(scope="session")
def build_engine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], artifact.Document]]:
    """Return a function that builds a release of SGLang for this host's CPU, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "BRINGUP_CACHE", os.environ.get("BRINGUP_CACHE") or str(paths.PROJECT / ".cache")
        )
        patch.chdir(paths.PROJECT)

        @cache
        def build(version: str) -> artifact.Document:
            log = tmp_path_factory.mktemp("engine") / "engine.log"
            entry = {"version": version}
            document = engine.build(entry, engine_name="real", cuda=False, log=log)
            assert document["status"] == "ok", document["reason"]
            return document

        yield build


@pytest.fixture(scope="session")
def real_engine(build_engine: Callable[[str], artifact.Document]) -> artifact.Document:
    """The engine document of the release that the project uses by default."""
    return build_engine("0.5.23")
