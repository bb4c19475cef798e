"""The reference of the command line, from typer's own definition of each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from app.cli.application import COMMANDS, application


def commands() -> str:
    """Every command in the order of `tilewise --help`: usage, what it does, arguments, options and examples."""
    group: Any = typer.main.get_command(application())
    return "\n".join(line for name in COMMANDS for line in _command(name, group.commands[name]))


def _command(name: str, command: Any) -> Iterator[str]:
    context: Any = command.make_context("tilewise", [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (f"## {name}", "", _flat(command.help or ""), "", "```text", f"tilewise {name} {usage}", "```", "")
    rows = [_row(one) for one in command.get_params(context) if not getattr(one, "hidden", False)]
    yield from ("| argument or option | default | meaning |", "| --- | --- | --- |")
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield from ("", "```text", *COMMANDS[name].examples, "```", "")


def _row(parameter: Any) -> tuple[str, str, str]:
    options = ", ".join(f"`{name}`" for name in parameter.opts if name.startswith("-"))
    shown = options or f"`{(parameter.metavar or parameter.name).upper()}`"
    meaning = _flat(parameter.help or "")
    if parameter.envvar:
        meaning += f" Environment: `{parameter.envvar}`."
    if parameter.required:
        return shown, "required", meaning
    default = parameter.default
    plain = None if callable(default) or default in {False, True, ""} else default
    return shown, "" if plain is None else f"`{plain}`", meaning


def _flat(text: str) -> str:
    """Text that fits a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
