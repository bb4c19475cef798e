"""tilewise backup, restore and verify."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import render
from app.cli.options import Json, settings

if TYPE_CHECKING:
    from app.store.backup import Manifest

_File = Annotated[Path, typer.Argument(dir_okay=False, help="The backup, a tar file.")]


def backup(file: _File, as_json: Json = False) -> None:
    """Write the database, and the secret of API keys, to one file; the service may run meanwhile."""
    from app.store import backup as store  # noqa: PLC0415 - the other commands need not load the database

    chosen = settings()
    manifest = store.backup(chosen.database, chosen.secret, file, version("tilewise"))
    _tell(file, manifest, "holds", as_json)


def restore(
    file: _File,
    replace: Annotated[bool, typer.Option("--replace", help="Move the database that is there aside.")] = False,
    as_json: Json = False,
) -> None:
    """Make a backup the database. The service must not run."""
    from app.store import backup as store  # noqa: PLC0415

    chosen = settings()
    _tell(file, store.restore(file, chosen.database, chosen.secret, replace=replace), "is restored:", as_json)


def verify(file: _File, as_json: Json = False) -> None:
    """Read all of a backup, and say whether it could be restored."""
    from app.store import backup as store  # noqa: PLC0415

    _tell(file, store.verify(file), "is sound:", as_json)


def _tell(file: Path, manifest: Manifest, what: str, as_json: bool) -> None:
    if as_json:
        render.print_json({"file": str(file), "revision": manifest.revision, "created_at": manifest.created_at})
    else:
        print(f"{file} {what} schema {manifest.revision}, of {manifest.created_at}, {', '.join(manifest.sha256)}.")
