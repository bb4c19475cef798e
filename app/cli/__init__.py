"""The command line: serve, demo, tune, best, bench, matmul, jobs, doctor and the others of `tilewise --help`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from app import __version__

__all__ = ["main"]

# Importing makes objects by the hundred thousand, all of which stay: looking through them often is a tenth of the time.
_LOADING: Final = (50_000, 20, 20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv's by default) and give its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words in (["--version"], ["-V"], ["version"]):
        from importlib.metadata import version  # noqa: PLC0415 - nothing else is loaded to say the version

        print(version("tilewise"))
        return 0
    _find_client()
    import tilewise  # noqa: PLC0415 - see above

    if tilewise.__version__ != __version__:
        others = (
            f"the package tilewise at {tilewise.__path__[0]} is of version {tilewise.__version__}, not {__version__}"
        )
        print(f"tilewise: {others}: pip install tilewise-client=={__version__}, or uninstall it", file=sys.stderr)
        return 1
    from app.cli.application import run  # noqa: PLC0415 - see above

    gc.set_threshold(*_LOADING)
    return run(words)


def _find_client() -> None:
    """Add the client in the service's wheel to sys.path where no .pth is read: `pip install --target`, `python -S`."""
    if find_spec("tilewise") is None:
        sys.path.append(str(Path(__file__).resolve().parents[2] / "tilewise_bundle"))
