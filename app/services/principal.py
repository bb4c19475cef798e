"""Principal: on whose behalf something is done, what it may do, and how much of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Scope: TypeAlias = Literal["read", "tune", "multiply", "manage", "metrics"]

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
ALL: Final = frozenset(SCOPES)


@dataclass(frozen=True, slots=True)
class UsageQuota:
    """What one principal may use; None leaves it to what the service allows everybody.

    `share` is of the product queue and the slab; `bytes_in_flight` are operands and results that the slab holds for
    it; seconds of a device are by the hour; `jobs` are tune jobs that have not ended.
    """

    requests_per_second: float | None = None
    share: float | None = None
    bytes_in_flight: int | None = None
    tune_seconds_per_hour: float | None = None
    product_seconds_per_hour: float | None = None
    jobs: int | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """An owner of jobs, results, matrices, regions and quotas, by name."""

    name: str
    scopes: frozenset[Scope] = ALL
    quota: UsageQuota = UsageQuota()

    def may(self, scope: Scope) -> bool:
        """Whether it has the scope."""
        return scope in self.scopes


def scopes_of(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by their names; raises ValueError for a name that is none."""
    given = frozenset(names)
    if unknown := sorted(given - ALL):
        raise ValueError(f"{', '.join(unknown)} is no scope: there are {', '.join(SCOPES)}")
    return frozenset(scope for scope in SCOPES if scope in given)


ANONYMOUS: Final = Principal("anonymous")
IDLE: Final = Principal("idle")
ADMIN: Final = Principal("admin")
_USER: Final = "uid-"
_RESERVED: Final = frozenset(principal.name for principal in (ANONYMOUS, IDLE, ADMIN))


def user_name(uid: int) -> str:
    """The name of the principal that a user of this host is."""
    return f"{_USER}{uid}"


def is_reserved(name: str) -> bool:
    """Whether the service itself gives principals this name, so that no key may."""
    return name in _RESERVED or name.startswith(_USER)
