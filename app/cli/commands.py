"""The command line: its commands, and how their errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from app.cli import show
from app.cli.exits import EXPLAINED, Exit, exit_of
from app.cli.options import Json, Url, examples, usage
from app.cli.products import matmul
from app.cli.recording import export, replay
from app.cli.session import session
from app.cli.shapes import shapes_of
from app.cli.tuning import best, tune
from app.client import ClientError
from app.errors import TilewiseError
from app.settings import Settings

app = typer.Typer(
    help="Finds the tile size that makes each matrix product fast, proves it, and serves the products.",
    epilog="\n\n".join(
        (examples("tilewise demo"), EXPLAINED, "Settings are TILEWISE_* variables, such as TILEWISE_DATA_DIR.")
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv's by default) and give its exit code."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="tilewise")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else Exit.FAILED
    except (ClientError, TilewiseError) as error:
        return _failed(error.message, error.code)
    except ValidationError as error:
        return _failed(_settings_text(error), "invalid")
    return Exit.OK


def _failed(message: str, code: str) -> int:
    """One sentence on standard error, and what mends it where that is known."""
    print(f"tilewise: {message}", file=sys.stderr)
    if code == "database_owned":
        print("Speak to it instead: give its address with --url, or in TILEWISE_URL.", file=sys.stderr)
    return exit_of(code)


def _settings_text(error: ValidationError) -> str:
    return "; ".join(f"TILEWISE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors())


def _version(wanted: bool) -> None:
    if wanted:
        print(version("tilewise"))
        raise typer.Exit


@app.callback()
def _tilewise(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Hold the options that stand before a command; its help is the application's."""


@app.command(epilog=examples("tilewise serve --port 8000"))
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on; by default TILEWISE_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 takes a free one; by default TILEWISE_PORT.")
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
    """Run the service, and print its address once it listens."""
    from app.cli import serving  # noqa: PLC0415 - the other commands need not load a server

    options = {"host": host, "port": port, "uds": uds, "tls_certificate": tls_certificate, "tls_key": tls_key}
    given = {name: value for name, value in options.items() if value is not None}
    serving.serve(Settings().model_copy(update=given), until_eof=until_eof)


@app.command(epilog=examples("tilewise demo", "tilewise demo --shapes 1024x1024x1024,1000x1200x800 --keep"))
def demo(
    shapes: Annotated[str, typer.Option(help="MxNxK shapes with commas; by default some that suit the device.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to tune, all shapes together.")] = 60.0,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep what is learnt here; by default it is thrown away.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the service running until Ctrl-C.")] = False,
) -> None:
    """Show it all, in under two minutes: start a service, tune over HTTP, multiply, check against NumPy."""
    from app.cli import demonstration  # noqa: PLC0415 - the other commands need not load it

    with usage():
        wanted = tuple(shapes_of(shapes.replace(",", " ").split()))
    order = demonstration.Demo(wanted, seconds, data_dir, keep)
    raise typer.Exit(demonstration.demo(order, *show.consoles()))


app.command(
    epilog=examples(
        "tilewise tune 1024 1024 1024",
        "tilewise tune 512x512x512 1000x1200x800 --seconds 30",
        "tilewise tune 512x512x512 --gain 1",
        "tilewise tune 256x256x256 --dtype float64 --trans-b --url http://localhost:8000",
    )
)(tune)
app.command(epilog=examples("tilewise best 1000 1200 800", "tilewise best 1000 1200 800 --exact --json"))(best)
app.command(
    epilog=examples(
        "tilewise matmul a.npy b.npy -o c.npy", "tilewise matmul a.npy b.npy -o c.npy --kernel naive --check"
    )
)(matmul)


app.command(epilog=examples("tilewise export 4a1fd5a0c29b4e33a4d2a31f6f1b77c5 -o tiled.jsonl.gz"))(export)
app.command(
    epilog=examples("tilewise replay tiled.jsonl.gz", "tilewise replay tiled.jsonl.gz --strategy random --trials 100")
)(replay)


@app.command(epilog=examples("tilewise devices", "tilewise devices --json --url http://localhost:8000"))
def devices(url: Url = None, as_json: Json = False) -> None:
    """List the devices."""
    out, err = show.consoles()
    with session(Settings(), url, "tilewise devices", err) as here:
        found = here.devices()
        if not found:
            here.best_config(1, 1, 1)  # refused, with the reasons why there is no device
    if as_json:
        show.print_json(found)
    else:
        out.print(show.device_table(found))


@app.command(epilog=examples("tilewise kernels", "tilewise kernels --json --url http://localhost:8000"))
def kernels(url: Url = None, as_json: Json = False) -> None:
    """List the kernels: what each computes on which architectures, and by which instructions."""
    if url:
        with session(Settings(), url, "tilewise kernels", show.consoles()[1]) as here:
            found = here.kernels()
    else:
        from app.cli.local import ladder  # noqa: PLC0415 - the other commands need not load the whole service

        found = ladder()
    if as_json:
        show.print_json(found)
    else:
        show.consoles()[0].print(show.kernel_table(found))


@app.command(epilog=examples("tilewise migrate"))
def migrate(as_json: Json = False) -> None:
    """Bring the database to this version's schema. The service does so itself when it starts."""
    from app.store import engine  # noqa: PLC0415 - the other commands need not load the database

    settings = Settings()
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with engine.owned(settings.database, f"pid {os.getpid()} (tilewise migrate)"):
        before = engine.current_revision(settings.database)
        engine.migrate(settings.database)
        after = engine.current_revision(settings.database)
    if as_json:
        show.print_json({"database": settings.database, "from": before, "to": after})
    else:
        done = "was current already" if before == after else f"went from {before or 'nothing'} to {after}"
        print(f"The schema of {settings.database} {done}{f', {after}' if before == after else ''}.")
