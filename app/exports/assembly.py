"""PTX and SASS as lines, each with the line of the source that it was compiled from.

Sources: PTX ISA (.loc, .file, .section) and NVIDIA's CUDA Binary Utilities (nvdisasm --print-line-info).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_FILE: Final = re.compile(r'^\s*\.file\s+(\d+)\s+"(?:[^"]*/)?([^"/]+)"', re.MULTILINE)
_LOC: Final = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s")
_DEBUG: Final = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}\s*$", re.MULTILINE | re.DOTALL)
_OF_DEBUG: Final = re.compile(r"^\s*\.(file|loc)\s|^\$L__tmp\d+:")
_STATEMENT: Final = re.compile(r"^\s+[^\s.{}/]")
_PLACE: Final = re.compile(r'^\s*//## File "(?:[^"]*/)?([^"/]+)", line (\d+)')
_INSTRUCTION: Final = re.compile(r"/\*([0-9a-f]{4,})\*/\s(.*)")
_LABEL: Final = re.compile(r"^(\.L_\w+|\w+):$")
_TEXT: Final = re.compile(r"^//-+ \.text\.|^\s*\.section\s+\.text\.")


@dataclass(frozen=True, slots=True)
class AssemblyLine:
    """A line of assembly, and the number of the source's line that it is of; None where it is of none."""

    text: str
    source_line: int | None


def ptx_lines(ptx: str, source: str) -> tuple[AssemblyLine, ...]:
    """PTX without the directives of its line information, which each instruction has of the file `source` instead."""
    files = dict(_FILE.findall(ptx))
    found, line = [], None
    for text in _DEBUG.sub("", ptx).rstrip().splitlines():
        if place := _LOC.match(text):
            # Line 0: instructions that are of no line. An inlined function's are of its own lines.
            line = int(place.group(2)) or None if files.get(place.group(1)) == source else None
        elif not _OF_DEBUG.match(text):
            found.append(AssemblyLine(text.expandtabs(4), line if _STATEMENT.match(text) else None))
    return tuple(_single_spaced(found))


def sass_lines(sass: str, source: str) -> tuple[AssemblyLine, ...]:
    """The instructions and labels of a disassembled cubin's functions, each instruction after its address."""
    found, line, is_code = [], None, False
    for text in sass.splitlines():
        if _TEXT.match(text):
            is_code, line = True, None
        elif place := _PLACE.match(text):
            line = int(place.group(2)) or None if place.group(1) == source else None
        elif is_code and (instruction := _INSTRUCTION.fullmatch(text.strip())):
            said = instruction.group(2).strip().removesuffix(";").rstrip()
            found.append(AssemblyLine(f"  {instruction.group(1)}  {said}", line))
        elif is_code and (label := _LABEL.match(text.strip())) and not text.strip().startswith(".text"):
            found.append(AssemblyLine(f"{label.group(1)}:", None))
    return tuple(found)


def _single_spaced(lines: list[AssemblyLine]) -> Iterator[AssemblyLine]:
    """Without empty lines at the start, and never two of them in succession."""
    before = ""
    for line in lines:
        if line.text.strip() or before:
            yield line
        before = line.text.strip()
