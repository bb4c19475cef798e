"""tilewise serve, demo and migrate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from app.cli import render
from app.cli.options import Json, settings, shapes_of, usage

_HIGHEST_PORT: Final = 65535


def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on; by default TILEWISE_HOST.")] = None,
    port: Annotated[
        str | None,
        typer.Option(help="The port; 0 takes a free one, off none; by default TILEWISE_PORT.", metavar="INTEGER|off"),
    ] = None,
    uds: Annotated[
        Path | None, typer.Option(help="A Unix socket to listen on beside the port; by default TILEWISE_UDS.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate chain; by default TILEWISE_TLS_CERTIFICATE.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate's key; by default TILEWISE_TLS_KEY.")
    ] = None,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> None:
    """Run the service, and say where it listens, on which devices, and when it is ready."""
    from app.cli import serve as serving  # noqa: PLC0415 - the other commands need not load a server

    options = {"host": host, "port": _port(port), "uds": uds, "tls_certificate": tls_certificate, "tls_key": tls_key}
    given = {name: value for name, value in options.items() if value is not None}
    serving.serve(settings().model_copy(update=given), until_eof=until_eof)


def _port(text: str | None) -> int | str | None:
    """A port, or off, as it is typed."""
    if text is None or text == "off":
        return text
    if not (text.isascii() and text.isdecimal() and int(text) <= _HIGHEST_PORT):
        raise typer.BadParameter(f"a port is a number from 0 to {_HIGHEST_PORT}, or off, got {text!r}")
    return int(text)


def demo(
    shapes: Annotated[
        str, typer.Option(help="Shapes such as 512x512x512, with commas; by default some that suit the device.")
    ] = "",
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="How long to tune, all shapes together; by default 34, and more on a slow host."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep what is learnt here; by default it is thrown away.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running until Ctrl-C.")] = False,
) -> None:
    """Show it all, in under two minutes: start a service, tune over HTTP, multiply, check against NumPy."""
    from app.cli.commands import demo as demonstration  # noqa: PLC0415 - the other commands need not load it

    with usage():
        wanted = tuple(shapes_of(shapes.replace(",", " ").split()))
    order = demonstration.Demo(wanted, seconds, data_dir, keep)
    raise typer.Exit(demonstration.demo(order, *render.consoles()))


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing: say whether there is something to do.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(help="A revision to go back to, such as 0007, before an older version starts.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the database to this version's schema. The service does so itself when it starts."""
    from app.store import database  # noqa: PLC0415 - the other commands need not load the database

    chosen = settings()
    if check:
        _check_schema(database.current_revision(chosen.database), database.revisions()[-1], as_json)
        return
    with database.owned(chosen.database, f"pid {os.getpid()} (tilewise migrate)"):
        before = database.current_revision(chosen.database)
        if to is None:
            database.migrate(chosen.database)
        else:
            database.migrate_to(chosen.database, to)
        after = database.current_revision(chosen.database)
    if as_json:
        render.print_json({"database": chosen.database, "from": before, "to": after})
    else:
        done = "was current already" if before == after else f"went from {before or 'nothing'} to {after}"
        print(f"The schema of {chosen.database} {done}{f', {after}' if before == after else ''}.")


def _check_schema(found: str | None, newest: str, as_json: bool) -> None:
    """Say whether a database has this version's schema, and exit with 1 if not."""
    if as_json:
        render.print_json({"schema": found, "newest": newest})
    elif found == newest:
        print(f"The schema is {found}, this version's.")
    else:
        print(f"The schema is {found or 'not there'}, this version's is {newest}: tilewise migrate brings it there.")
    if found != newest:
        raise typer.Exit(1)
