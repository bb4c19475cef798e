"""Sources of kernels and steps, and their digests."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from kernels.common import wgmma_registers

COMMON: Final = "common"
GENERATED: Final = {f"{COMMON}/wgmma_registers.h": wgmma_registers.header}
# No parts of a product: what a GPU does before a launch that is timed.
READ_SWEEP: Final = f"{COMMON}/read_sweep.ptx"
WAIT_FOR_HOST: Final = f"{COMMON}/wait_for_host.ptx"
_INCLUDE: Final = re.compile(r'^#include "(\w+\.h)"$', re.MULTILINE)
# A literal, in which nothing is a comment or a blank too many; else blanks and comments, which together are one blank.
# One that is not closed ends with its line, a comment with the text: the pattern never looks at a character again.
_LITERAL: Final = r"""(?P<literal>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)"""
_UNREAD: Final = re.compile(_LITERAL + r"|(?:[^\S\n]|//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))+", re.DOTALL)


@cache
def source(name: str) -> str:
    """The text of a source, such as tiled/kernel.cu, with its headers included.

    A header is looked for in the folder of the source that includes it, then in `common`, where some are generated.
    """
    if name in GENERATED:
        return GENERATED[name]()
    folder = name.rpartition("/")[0]
    text = files("kernels").joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: source(_header(folder, found.group(1))), text)


def _header(folder: str, name: str) -> str:
    own = f"{folder}/{name}"
    return own if files("kernels").joinpath(own).is_file() else f"{COMMON}/{name}"


def code(text: str) -> str:
    """The code of a source: without comments and blank lines, with single blanks."""
    lines = (line.strip() for line in _UNREAD.sub(lambda found: found["literal"] or " ", text).split("\n"))
    return "\n".join(line for line in lines if line)


@cache
def code_digest(text: str) -> str:
    """SHA-256 of a source's code."""
    return sha256(code(text).encode()).hexdigest()
