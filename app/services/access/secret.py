"""The service's secret: what its keyed hashes are keyed with."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from app.errors import StartRefused
from app.store.folders import sync_folder

_BYTES: Final = 32


def read_secret(path: Path) -> bytes:
    """The secret in a file, which is made, for its owner only, if it is not there.

    Raises StartRefused if the file cannot be read or made, is too short, or may be read by others.
    """
    try:
        _create(path)
        with path.open("rb") as file:
            mode, secret = os.fstat(file.fileno()).st_mode, file.read(2 * _BYTES)
    except OSError as error:
        raise StartRefused(f"the secret {path} cannot be read or made: {error.strerror or error}") from error
    if mode & 0o077:
        raise StartRefused(f"others may read the secret {path}: chmod 600 it, and make new keys")
    if len(secret) < _BYTES:
        raise StartRefused(
            f"the secret {path} has {len(secret)} bytes, and should have {_BYTES}: restore it from a backup"
        )
    return secret


def _create(path: Path) -> None:
    """Write a new secret beside the path and link it there, so that a crash leaves a whole one or none."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
        sync_folder(path.parent)  # a secret whose name is lost takes every key that was made with it
    except FileExistsError:
        return  # another process was faster
    finally:
        draft.unlink(missing_ok=True)
