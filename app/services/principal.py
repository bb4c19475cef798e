"""Principal: on whose behalf something is done. Until authentication lands there is one caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """An owner of jobs and quotas, by name."""

    name: str


ANONYMOUS: Final = Principal("anonymous")
IDLE: Final = Principal("idle")
