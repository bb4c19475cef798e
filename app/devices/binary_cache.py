"""Cache of compiled binaries on disk: of nobody else's making, written aside and renamed, and checked when read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

CACHES: Final = ("bin", "cuda", "pocl")  # folders of the cache from which code is loaded
_DIGEST: Final = "sha256"


def make_private(folder: Path) -> None:
    """Make a folder of code that only this user may read or write.

    One that is there becomes so, unless somebody else may have put things into it: raises PermissionError.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _distrusted(folder)
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        for place, _, files in os.walk(folder, onerror=_raise):
            if any(_is_open(Path(place, name)) for name in (".", *files)):
                raise _distrusted(folder)
        folder.chmod(0o700)


def _is_open(path: Path) -> bool:
    """Whether it is another user's, or others may write to it; the groups of this process are its own."""
    found = path.lstat()
    strangers = stat.S_IWOTH | (0 if found.st_gid in {os.getegid(), *os.getgroups()} else stat.S_IWGRP)
    return found.st_uid != os.geteuid() or (not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & strangers))


def _distrusted(folder: Path) -> PermissionError:
    return PermissionError(f"others may have put code into the folder {folder}: remove it, and it is made again")


def _raise(error: OSError) -> None:
    raise error


def name(*parts: str) -> str:
    """A file's name for a binary: SHA-256 of everything it depends on."""
    return sha256("\0".join(parts).encode()).hexdigest()


def read(path: Path) -> Mapping[str, Any] | None:
    """What is told of the binary at a path; None if there is none, or its bytes are not those that were written."""
    try:
        binary, told = path.read_bytes(), json.loads(_facts(path).read_text(encoding="utf-8"))
        digest = told.pop(_DIGEST)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return told if digest == _digest(binary, told) else None


def write(path: Path, binary: bytes, facts: Mapping[str, Any]) -> None:
    """Put a binary in its place, and what is told of it beside it, with the digest of both."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _put(path, binary)
    _put(_facts(path), json.dumps({**facts, _DIGEST: _digest(binary, facts)}).encode())


def _facts(path: Path) -> Path:
    return path.with_suffix(".json")


def _digest(binary: bytes, facts: Mapping[str, Any]) -> str:
    return sha256(binary + b"\0" + json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _put(path: Path, content: bytes) -> None:
    """Put a file in its place whole, or not at all."""
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as aside:
        aside.write(content)
    Path(aside.name).replace(path)
