"""A command line as its user meets it: exit code, what it printed, and what it complained of.

PYTEST_DONT_REWRITE: the fixtures here are a plugin of the tests that also import its types.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.cli.spawn import Started
from app.observability.logs import StderrHandler
from tests.support.started_services import settled

# Of a tune where it matters neither which kernels are tried nor how often: others take seconds to compile.
FEW = ("--kernels", "naive, tiled", "--trials", 2)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> Run:
    """Run a command with a database of the test session's own, and no service."""
    monkeypatch.setenv("TILEWISE_DATA_DIR", str(home))
    monkeypatch.setenv("TILEWISE_DEVICES", "opencl")

    def ran(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        for handler in [one for one in logging.getLogger().handlers if isinstance(one, StderrHandler)]:
            logging.getLogger().removeHandler(handler)  # a command that serves adds it
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return ran


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with settled(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(params=["with a service", "without one"])
def where(request: pytest.FixtureRequest) -> list[str]:
    """The words that say where a command works: every test that takes them runs on both paths."""
    return ["--url", request.getfixturevalue("service").url] if request.param == "with a service" else []
