"""tilewise completion: the words that a shell may complete."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is documented there

_SHELLS: Final = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that has a shell complete commands and options."""
    if shell not in _SHELLS:
        raise typer.BadParameter(f"a shell is one of {', '.join(_SHELLS)}, got {shell!r}")
    print(get_completion_script(prog_name="tilewise", complete_var="_TILEWISE_COMPLETE", shell=shell))
