"""Cache of compiled binaries on disk; entries are written aside and renamed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile


def name(*parts: str) -> str:
    """A file's name for a binary: SHA-256 of everything it depends on."""
    return sha256("\0".join(parts).encode()).hexdigest()


def read(path: Path) -> bytes | None:
    """The file's bytes, or None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write(path: Path, content: bytes) -> None:
    """Put a file in its place whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as aside:
        aside.write(content)
    Path(aside.name).replace(path)
