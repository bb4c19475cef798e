"""What this kernel can restrict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from app.devices.sandbox import landlock, seccomp

Part: TypeAlias = Literal["files", "tcp", "signals", "system_calls"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True)
class Support:
    """Landlock's version, 0 for none that is of use, and whether there are filters of system calls."""

    landlock: int = 0
    filters: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is restricted, of PARTS."""
        has = (
            self.landlock > 0,
            self.landlock >= landlock.NETWORK,
            self.landlock >= landlock.SCOPES,
            self.filters,
        )
        return tuple(part for part, holds in zip(PARTS, has, strict=True) if holds)

    @property
    def missing(self) -> tuple[Part, ...]:
        """What is not, of PARTS."""
        return tuple(part for part in PARTS if part not in self.parts)


def support() -> Support:
    """Ask the kernel, without restricting this process."""
    number = landlock.version()
    return Support(number if number >= landlock.OLDEST else 0, seccomp.is_available())
