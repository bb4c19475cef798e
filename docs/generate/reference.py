"""Write what the pages in docs/ say of the code: HTTP, errors, the command line, and the kernels' facts.

python docs/generate/reference.py [--check]     with --check only say which pages differ
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from commands import commands
from http_reference import error_facts, error_list, operations, schemas
from kernel_facts import facts, ladder
from lesson_pages import lesson_list, lesson_page

from app.errors.codes import error_codes
from app.main import create_app
from app.settings import Settings
from benchmarks.report.readme import fill, generated, pages
from kernels import CATALOGUE
from kernels.lessons import LESSONS


def tables() -> dict[str, Callable[[], str]]:
    """What fills each block of these pages."""
    document = create_app(Settings()).openapi()
    fixed: dict[str, Callable[[], str]] = {
        "http": partial(operations, document),
        "schemas": partial(schemas, document),
        "commands": commands,
        "errors": error_list,
        "ladder": ladder,
        "lessons": lesson_list,
    }
    kernels = {f"kernel/{kernel.name}": partial(facts, kernel) for kernel in CATALOGUE.values()}
    kernels |= {f"lesson/{one.kernel.name}": partial(lesson_page, one) for one in LESSONS}
    return fixed | kernels | {f"error/{code}": partial(error_facts, document, code) for code in error_codes()}


def written() -> Iterator[tuple[Path, str]]:
    """Every page as it has to be."""
    known = tables()
    for path in pages():
        yield path, generated(path.read_text(encoding="utf-8"), known)


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    fill(written(), check=parser.parse_args().check)


if __name__ == "__main__":
    main()
