"""`tilewise matmul` of files that are in the folder of operands, with a service and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.api.service_in_process import running
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]

A = np.random.default_rng(1).integers(-8, 9, (30, 20)).astype(np.float32)
B = np.random.default_rng(2).integers(-8, 9, (20, 25)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("operands")
    (found / "models").mkdir()
    np.save(found / "models" / "a.npy", A)
    np.save(found / "b.npy", B)
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("files"), operand_dir=folder) as service:
        yield f"http://127.0.0.1:{service.port}"


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False], ids=["without a service", "with a service"])
def test_operands_are_named_in_the_folder(
    run: Run, url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    if here:
        monkeypatch.setenv("TILEWISE_OPERAND_DIR", str(folder))
    where = [] if here else ["--url", url]
    made = run("matmul", "service:models/a.npy", "service:b.npy", "-o", tmp_path / "c.npy", *where)
    assert made.code == 0, made.err
    assert np.array_equal(np.load(tmp_path / "c.npy"), A @ B)
    mixed = run("matmul", "service:models/a.npy", folder / "b.npy", "-o", tmp_path / "c.npy", "--json", *where)
    assert mixed.code == 0, mixed.err
    assert mixed.json["shape"] == [30, 25]
    missing = run("matmul", "service:none.npy", "service:b.npy", "-o", tmp_path / "c.npy", *where)
    assert missing.code == 1
    assert "none.npy" in missing.err


def test_what_is_not_here_cannot_be_checked_here(run: Run, tmp_path: Path) -> None:
    ran = run("matmul", "service:a.npy", "service:b.npy", "-o", tmp_path / "c.npy", "--check")
    assert ran.code == 2
    assert "--check" in ran.err
