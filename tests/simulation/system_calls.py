"""What a process asks of its file system, as strace writes it down: calls in the order of their beginnings and ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TRACED: Final = (
    "openat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,rename,renameat,renameat2,unlink,"
    "unlinkat,rmdir,link,linkat,symlink,symlinkat,mkdir,mkdirat,fsync,fdatasync,lseek,sendfile,copy_file_range"
)
_LONGEST: Final = 2**22  # bytes of one write that are written down
_LINE: Final = re.compile(r"(\d+) +(.*)")
_CALL: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_RESUMED: Final = re.compile(r"<\.\.\. (\w+) resumed>(.*)")
_UNFINISHED: Final = " <unfinished ...>"
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_OPENED: Final = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")


@dataclass(frozen=True, slots=True)
class SystemCall:
    """One successful call: its arguments as written down, the descriptor's path if it has one, and its value."""

    name: str
    arguments: str
    value: int
    descriptor: int | None
    path: str | None
    texts: tuple[bytes, ...]

    def number(self, place: int) -> int:
        """The argument at a place from the end, as a number."""
        return int(self.arguments.rsplit(", ", -place)[place])


@dataclass(frozen=True, slots=True)
class Moment:
    """The beginning or the end of a call."""

    call: SystemCall
    is_end: bool


def recorder() -> str | None:
    """The path of a strace that may trace here, or None."""
    found = shutil.which("strace")
    if found is None:
        return None
    tried = subprocess.run([found, "-f", "--seccomp-bpf", "-o", os.devnull, "true"], capture_output=True, check=False)
    return found if tried.returncode == 0 else None


def record(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run a Python program and write its calls to `log`; raises CalledProcessError if it fails."""
    strace = recorder()
    assert strace is not None, "there is no strace"
    options = ["-f", "--seccomp-bpf", "-y", "-xx", "-s", str(_LONGEST), "-e", f"trace={_TRACED}", "-o", str(log)]
    subprocess.run(
        [strace, *options, sys.executable, *command], check=True, env={**os.environ, **environment}, timeout=220
    )


def moments(log: Path, *folders: Path) -> Iterator[Moment]:
    """The beginnings and ends of the calls that concern what lies under the folders, in their order."""
    found: list[tuple[int, bool, SystemCall]] = []
    for begun, ended, call in _calls(log, tuple(_hex(folder) for folder in folders)):
        found += [(begun, False, call), (ended, True, call)]
    for _, is_end, call in sorted(found, key=lambda one: one[:2]):
        yield Moment(call, is_end)


def _calls(log: Path, marks: tuple[str, ...]) -> Iterator[tuple[int, int, SystemCall]]:
    begun: dict[str, tuple[int, str]] = {}
    with log.open(encoding="ascii") as lines:
        for number, line in enumerate(lines):
            matched = _LINE.fullmatch(line.rstrip("\n"))
            if matched is None:
                continue
            thread, text = matched.groups()
            if text.endswith(_UNFINISHED):
                begun[thread] = number, text.removesuffix(_UNFINISHED)
                continue
            start = number
            if (resumed := _RESUMED.fullmatch(text)) is not None and thread in begun:
                start, head = begun.pop(thread)
                text = head + resumed[2]
            call = _call(text) if any(mark in text for mark in marks) else None
            if call is not None:
                yield start, number, call


def _call(text: str) -> SystemCall | None:
    """A call that succeeded; raises ValueError for one that was not written down whole."""
    matched = _CALL.match(text)
    if matched is None or int(matched[3]) < 0:
        return None
    name, arguments, value = matched[1], matched[2], int(matched[3])
    texts = _TEXT.findall(arguments)
    if any(cut for _, cut in texts):
        raise ValueError(f"{name} wrote more than {_LONGEST} bytes")
    first = _OPENED.match(arguments)
    descriptor, path = (int(first[1]), _bytes(first[2]).decode()) if first and not first[3] else (None, None)
    return SystemCall(name, arguments, value, descriptor, path, tuple(_bytes(content) for content, _ in texts))


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _hex(path: Path) -> str:
    return "".join(f"\\x{byte:02x}" for byte in str(path).encode())
