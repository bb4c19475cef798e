"""What principals use of what their quotas allow: requests a second, and seconds of devices an hour."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from app.errors import DeviceTimeUsed, RateLimited
from app.services.principal import Principal

_HOUR: Final = 3600.0
_MOST: Final = 10_000  # principals of whom a figure is kept


@dataclass(slots=True)
class _Level:
    """A leaky bucket: what was put in leaks at its rate."""

    level: float
    at: float

    def after(self, now: float, rate: float) -> float:
        """What is left of it."""
        return max(0.0, self.level - (now - self.at) * rate)


class LeakyBuckets:
    """One leaky bucket a name; one that has run empty is forgotten. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._levels: dict[str, _Level] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._levels)

    def put(self, name: str, amount: float, rate: float, capacity: float) -> float:
        """Add to a bucket if the whole of it fits: gives 0, else the seconds until it will, and adds nothing."""
        with self._lock:
            now = self._clock()
            level = self._level(name, now, rate)
            if level + amount > capacity:
                return (level + amount - capacity) / rate
            self._keep(name, level + amount, now, rate)
            return 0.0

    def spill(self, name: str, amount: float, rate: float) -> None:
        """Add to a bucket, whether it fits or not."""
        with self._lock:
            now = self._clock()
            self._keep(name, self._level(name, now, rate) + amount, now, rate)

    def level(self, name: str, rate: float) -> float:
        """What is in a bucket now."""
        with self._lock:
            return self._level(name, self._clock(), rate)

    def _level(self, name: str, now: float, rate: float) -> float:
        found = self._levels.get(name)
        return 0.0 if found is None else found.after(now, rate)

    def _keep(self, name: str, level: float, now: float, rate: float) -> None:
        if len(self._levels) >= _MOST and name not in self._levels:
            self._levels = {key: one for key, one in self._levels.items() if one.after(now, rate) > 0}
        self._levels[name] = _Level(level, now)


class RequestRates:
    """How often each principal asks: a second's worth at once, then at its rate."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._buckets = LeakyBuckets(clock)

    def take(self, principal: Principal) -> None:
        """Count a request; raises RateLimited if it comes too soon."""
        rate = principal.quota.requests_per_second
        if rate is None:
            return
        if seconds := self._buckets.put(principal.name, 1.0, rate, max(1.0, rate)):
            facts = {"limit": rate, "retry_after": math.ceil(seconds), "principal": principal.name}
            raise RateLimited(f"{principal.name} may make {rate:g} requests a second", **facts)


class DeviceSeconds:
    """Seconds of devices that each principal has used of its hour, for one kind of work."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._what, self._buckets = what, LeakyBuckets(clock)

    def expect(self, principal: Principal, allowed: float | None, seconds: float = 0.0) -> None:
        """Raise DeviceTimeUsed unless so many seconds are left of an hour's `allowed`; None allows any number."""
        if allowed is None:
            return
        rate = max(allowed, 1e-9) / _HOUR
        used = self._buckets.level(principal.name, rate)
        if used + seconds > allowed or used >= allowed:
            wait = (used + min(seconds, allowed) - allowed) / rate
            facts = {"limit": allowed, "size": round(used + seconds, 3), "retry_after": max(1, math.ceil(wait))}
            message = (
                f"{principal.name} may use {allowed:g} s of devices an hour for {self._what}, and has used {used:.3g}"
            )
            raise DeviceTimeUsed(message, **facts)

    def spend(self, principal: Principal, allowed: float | None, seconds: float) -> None:
        """Count seconds that were used."""
        if allowed is not None:
            self._buckets.spill(principal.name, seconds, max(allowed, 1e-9) / _HOUR)
