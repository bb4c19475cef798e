"""Matrix: one that the service keeps, by its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix, or a batch of them, that the service keeps: an operand that need not be sent.

    `shape` and `dtype` are NumPy's, `devices` those that have a copy. An evictable one may be dropped by the service
    where it needs room. `version` tells it from others that had its name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int = 0
    evictable: bool = False
    version: int = 0
    devices: tuple[str, ...] = ()
    created_at: datetime | None = None
    used_at: datetime | None = None
    transposed: bool = False

    @property
    def T(self) -> Matrix:  # noqa: N802 - NumPy's name for it
        """Its transpose, or that of each of a batch, as an operand: nothing is copied anywhere."""
        return replace(self, shape=(*self.shape[:-2], *self.shape[-2:][::-1]), transposed=not self.transposed)
