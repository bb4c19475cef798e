"""Help: every command has one, with examples that are command lines it takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import typer.main

import app
import tilewise
from app.cli import main
from app.cli.application import COMMANDS, application
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]


def examples(text: str) -> list[str]:
    lines = [line.strip() for line in text[text.index("Example") :].splitlines()]
    return [found.group() for line in lines if (found := re.search(r"tilewise [^<>)]+", line))]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_a_commands_help_are_lines_it_takes(
    run: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.npy", "b.npy"):
        np.save(name, np.eye(2))
    for name in ("tiled.jsonl.gz", "trace.json.gz", "model.onnx", "all.bundle.jsonl", "cache.json"):
        Path(name).touch()
    ran = run(command, "--help")
    assert ran.code == 0
    shown = examples(ran.out)
    assert shown
    for line in shown:
        group = typer.main.get_command(application())
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


@pytest.mark.drawn(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_flags_without_a_value_and_arguments_without_braces(run: Run, command: str) -> None:
    shown = run(command, "--help").out
    assert "<bool>" not in shown
    assert not set("{}") & set(shown)
    assert run("help", command).out == shown


@pytest.mark.rotating
@pytest.mark.parametrize("words", [["help"], ["-h"], ["--help"]])
def test_help_is_a_word_too(run: Run, words: list[str]) -> None:
    ran = run(*words)
    assert ran.code == 0
    assert "Exit codes" in ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_TILEWISE_COMPLETE" in ran.out
    assert run("completion", "cmd").code == 2


@pytest.mark.slow
def test_bash_completes_commands_and_options() -> None:
    def completed(words: str, number: int) -> list[str]:
        asked = {"_TILEWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        command = [sys.executable, "-m", "app.cli"]
        ran = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
        return ran.stdout.split()

    assert sorted(completed("tilewise mi", 1)) == ["migrate", "misses"]
    assert "--seconds" in completed("tilewise tune --s", 2)


def test_wrong_command_and_option_are_answered_with_the_nearest(run: Run) -> None:
    assert "'watch'" in run("wach").err
    assert "--seconds" in run("tune", "64", "--second", 3).err


def test_no_command_is_wrong_usage_and_shows_the_help(run: Run) -> None:
    ran = run()
    assert ran.code == 2
    assert "tilewise demo" in ran.out + ran.err


def test_the_version_is_the_packages(run: Run) -> None:
    assert {run(word).out.strip() for word in ("--version", "-V", "version")} == {version("tilewise")}


def test_module_runs_without_a_script_and_loads_little() -> None:
    heavy = "('fastapi', 'sqlalchemy', 'uvicorn', 'numpy', 'rich', 'typer', 'pydantic')"
    loaded = f"import sys, app.cli; app.cli.main(['-V']); print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert said == f"{version('tilewise')}\n[]\n"
    ran = subprocess.run([sys.executable, "-m", "app.cli", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == version("tilewise")


def test_a_client_of_another_version_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tilewise, "__version__", "9.9")
    assert main(["devices"]) == 1
    told = capsys.readouterr().err
    assert f"is of version 9.9, not {app.__version__}" in told
    assert "pip install tilewise-client==" in told
