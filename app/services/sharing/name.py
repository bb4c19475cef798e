"""The name of a service among those that share a database: it outlives the process, as its folder of data does."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import uuid4

from app.errors import StartRefused

_FILE: Final = "service-name"


def service_name(data_dir: Path) -> str:
    """The name in a folder of data, made where there is none; raises StartRefused."""
    file = data_dir / _FILE
    try:
        if not file.exists():
            file.write_text(f"{uuid4().hex}/", encoding="utf-8")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise StartRefused(f"{file} cannot be kept: {error.strerror}") from error
