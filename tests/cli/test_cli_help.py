"""Help: every command has one, with examples that are command lines it takes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import typer.main
from commandline import Run

from app.cli.commands import app

pytest_plugins = ["commandline"]

COMMANDS = ["serve", "demo", "tune", "best", "matmul", "export", "replay", "devices", "kernels", "migrate"]


def examples(text: str) -> list[str]:
    lines = [line.strip() for line in text[text.index("Example") :].splitlines()]
    return [line for line in lines if line.startswith("tilewise")]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_a_commands_help_are_lines_it_takes(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.npy", "b.npy"):
        np.save(name, np.eye(2))
    Path("tiled.jsonl.gz").touch()
    ran = run(command, "--help")
    assert ran.code == 0
    shown = examples(ran.out)
    assert shown
    for line in shown:
        group = typer.main.get_command(app)
        _, name, *words = shlex.split(line)
        assert name == command
        with group.make_context("tilewise", [name, *words]) as context:
            taken = group.get_command(context, name)  # type: ignore[attr-defined]  # a group, which its type hides
            taken.make_context(name, words, parent=context).close()


def test_the_help_lists_every_command_and_what_the_exit_codes_mean(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    assert all(f" {command} " in ran.out for command in COMMANDS)
    for meaning in ("0 done", "1 failed", "2 wrong usage", "3 not tuned", "4 no service", "130 interrupted"):
        assert meaning in " ".join(ran.out.split())


def test_no_command_is_wrong_usage_and_shows_the_help(run: Run) -> None:
    ran = run()
    assert ran.code == 2
    assert "tilewise demo" in ran.out + ran.err


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version").out.strip() == version("tilewise")


def test_the_module_runs_where_no_script_is_installed_and_loads_no_more_than_it_needs() -> None:
    loaded = (
        "import sys, app.cli; print([name for name in ('fastapi', 'sqlalchemy', 'uvicorn') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"
    ran = subprocess.run([sys.executable, "-m", "app.cli", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == version("tilewise")
