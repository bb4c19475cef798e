"""The commands by name, imported only when called, and how errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperOption

from app.cli.exit_codes import EXPLAINED, Exit, exit_of
from app.cli.options import examples

_COMPLETE: Final = "_TILEWISE_COMPLETE"  # what completion's scripts set to ask for the words that may follow
_HELP: Final = ("help", "--help", "-h")


@dataclass(frozen=True)
class Command:
    """Where a command's function is, called as the command is, and command lines to copy."""

    module: str
    examples: tuple[str, ...]
    function: str = ""  # where Python keeps the command's own name for itself


COMMANDS: Final = {
    "serve": Command("serve", ("tilewise serve --port 8000",)),
    "demo": Command("serve", ("tilewise demo", "tilewise demo --shapes 1024,1000x1200x800 --keep")),
    "doctor": Command("doctor", ("tilewise doctor", "tilewise doctor --json")),
    "tune": Command(
        "tune",
        (
            "tilewise tune 1024",
            "tilewise tune 512x512x512 1000x1200x800 --seconds 30",
            "tilewise tune 4096x16x4096 x 8 --dtype bf16",
            "tilewise tune 512x512x512 --gain-percent 1",
            "tilewise tune 256x256x256 --dtype float64 --trans-b --url http://localhost:8000",
        ),
    ),
    "workload": Command(
        "workloads.workload",
        (
            "tilewise workload trace.json.gz",
            "tilewise workload trace.json.gz --tune 60",
            "tilewise workload model.onnx --free 32 --url http://localhost:8000",
        ),
    ),
    "best": Command("tune", ("tilewise best 1000x1200x800", "tilewise best 512 --dtype half --match exact --json")),
    "learn": Command(
        "learn",
        (
            "tilewise learn",
            "tilewise learn 1024 --rung 3",
            "tilewise learn 512 --rung 4 --change PAD=0",
        ),
    ),
    "show": Command("show", ("tilewise show 512", "tilewise show 1000x1200x800 --kernel tiled")),
    "profile": Command(
        "results.profile",
        ("tilewise profile 512", "tilewise profile 2048 --stored --json", "tilewise profile 1024 --dtype half"),
    ),
    "bench": Command("tune", ("tilewise bench 512", "tilewise bench 1000x1200x800 4096x16x4096 --dtype bf16 --json")),
    "matmul": Command(
        "matmul",
        (
            "tilewise matmul a.npy b.npy -o c.npy",
            "tilewise matmul a.npy b.npy -o c.npy --kernel naive --check",
            "tilewise matmul a.npy b.npy -o c.npy --verify freivalds",
            "tilewise matmul - b.npy -o - < a.npy > c.npy",
        ),
    ),
    "jobs": Command("jobs", ("tilewise jobs", "tilewise jobs --state running --json")),
    "watch": Command("jobs", ("tilewise watch", "tilewise watch 4a1fd5a0")),
    "extend": Command("jobs", ("tilewise extend 4a1fd5a0", "tilewise extend 4a1fd5a0 --seconds 60")),
    "cancel": Command("jobs", ("tilewise cancel 4a1fd5a0",)),
    "trials": Command("records", ("tilewise trials", "tilewise trials 4a1fd5a0 --kernel tiled --limit 20")),
    "bests": Command("records", ("tilewise bests", "tilewise bests --dtype fp16 --json")),
    "misses": Command(
        "records",
        ("tilewise misses", "tilewise misses --limit 10", "tilewise misses --dismiss 512x512x512 --dtype fp16"),
    ),
    "analyse": Command("devices", ("tilewise analyse 55x43x48", "tilewise analyse 1024 --tile 32 --kernel naive")),
    "export": Command(
        "results.interchange",
        (
            "tilewise export -o all.bundle.jsonl",
            "tilewise export --format kernel-tuner --kernel tiled --shape 512x512x512 -o tiled.json",
            "tilewise export 4a1fd5a0 -o tiled.jsonl.gz",
        ),
    ),
    "import": Command(
        "results.interchange",
        (
            "tilewise import all.bundle.jsonl",
            "tilewise import cache.json --shape 4096x4096x4096 --kernel register_tiled",
        ),
        "import_results",
    ),
    "imports": Command("results.interchange", ("tilewise imports", "tilewise imports --delete 5b1f0e7c9a")),
    "check": Command(
        "results.check",
        (
            "tilewise check --against all.bundle.jsonl",
            "tilewise check --against all.bundle.jsonl --tolerance 5% --seconds 60 --json",
        ),
    ),
    "take": Command(
        "exports.take",
        (
            "tilewise take 512x512x512 --as json -o product",
            "tilewise take 4096x4096x4096 --dtype bf16 --as c -o product --url http://localhost:8000",
            "tilewise take 1024 --as c --kernel hopper --dtype half --arch sm_90 -o product",
        ),
    ),
    "replay": Command(
        "results.replay",
        ("tilewise replay tiled.jsonl.gz", "tilewise replay tiled.jsonl.gz --strategy random --trials 100"),
    ),
    "devices": Command("devices", ("tilewise devices", "tilewise devices --json --url http://localhost:8000")),
    "cordon": Command("cordons", ('tilewise cordon cuda:1 --reason "its memory fails"',)),
    "uncordon": Command("cordons", ("tilewise uncordon cuda:1",)),
    "kernels": Command("devices", ("tilewise kernels", "tilewise kernels --json --url http://localhost:8000")),
    "migrate": Command("serve", ("tilewise migrate", "tilewise migrate --check", "tilewise migrate --to 0007")),
    "keys": Command(
        "keys",
        (
            "tilewise keys create ann --scopes read,multiply --expires 90d",
            "tilewise keys create robot --quota jobs=4 --quota requests_per_second=50",
            "tilewise keys list",
            "tilewise keys revoke 0f1e2d3c4b5a",
        ),
    ),
    "backup": Command("backup", ("tilewise backup tilewise-2026-11-23.tar",)),
    "restore": Command("backup", ("tilewise restore tilewise-2026-11-23.tar --replace",)),
    "verify": Command("backup", ("tilewise verify tilewise-2026-11-23.tar",)),
    "completion": Command("completion", ('eval "$(tilewise completion bash)"', "tilewise completion fish")),
}


class PlainCommand(TyperCommand):
    """A command whose help shows flags without a value, and arguments without braces."""

    def get_params(self, ctx: Any) -> Any:
        """Give the parameters, the flags of them without the name of a type."""
        parameters = super().get_params(ctx)
        for one in parameters:
            if isinstance(one, TyperOption) and one.is_flag:
                one.metavar = ""
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Give the words of the usage line."""
        return [
            piece.replace("{", "").replace("}", "").replace("......", "...")
            for piece in super().collect_usage_pieces(ctx)
        ]


def application(only: str | None = None) -> typer.Typer:
    """Make the application of every command, or of the one that is called."""
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
    app.callback()(_tilewise)
    for name, command in COMMANDS.items():
        if only in {None, name}:
            function = getattr(import_module(f"app.cli.commands.{command.module}"), command.function or name)
            app.command(name, cls=PlainCommand, epilog=examples(*command.examples))(function)
    return app


def run(words: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    called = _without_help_word(list(words))
    if _COMPLETE in os.environ:
        from typer import completion  # noqa: PLC0415 - only a shell that completes needs it

        completion.get_completion_inspect_parameters()  # this registers the shells
    only = called[0] if called and called[0] in COMMANDS and _COMPLETE not in os.environ else None
    try:
        application(only)(args=called, prog_name="tilewise")
    except SystemExit as left:
        if isinstance(getattr(left.__context__, "__cause__", None), KeyboardInterrupt):
            print("stopped", file=sys.stderr)
        return left.code if isinstance(left.code, int) else Exit.FAILED
    except Exception as error:  # noqa: BLE001 - what nobody expected is raised again
        return _refused(error)
    return Exit.OK


def _without_help_word(words: list[str]) -> list[str]:
    """`tilewise help` and `tilewise help tune` as click has them."""
    if not words or words[0] not in _HELP:
        return words
    return [*words[1:2], "--help"]


def _refused(error: Exception) -> Exit:
    """One sentence on standard error, and what mends it where that is known; raises what nobody expected."""
    from pydantic import ValidationError  # noqa: PLC0415 - only where something failed

    from app.errors import TilewiseError  # noqa: PLC0415
    from tilewise import ClientError  # noqa: PLC0415

    if isinstance(error, ValidationError):
        message, code = _settings_text(error), "invalid"
    elif isinstance(error, OSError) and error.filename is not None:
        message, code = f"{error.filename}: {error.strerror}", "failed"
    elif isinstance(error, ClientError | TilewiseError):
        message, code = error.message, error.code
    else:
        raise error
    print(f"tilewise: {message}", file=sys.stderr)
    return exit_of(code)


def _settings_text(error: Any) -> str:
    from app.errors.validation import sentence  # noqa: PLC0415 - only where something failed

    return "; ".join(sentence(each, f"TILEWISE_{'_'.join(map(str, each['loc'])).upper()}") for each in error.errors())


def _version(wanted: bool) -> None:
    if wanted:
        print(version("tilewise"))
        raise typer.Exit


def _tilewise(
    _: Annotated[
        bool,
        typer.Option(
            "--version", "-V", metavar="", callback=_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Hold the options that stand before a command; its help is the application's."""
