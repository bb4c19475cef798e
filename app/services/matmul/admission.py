"""Admission control: a product is admitted or refused by its head, before its body is read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Final

from app.errors import NoRoom, OverShare, QueueFull
from app.services.principal import ANONYMOUS, Principal

_LONGEST: Final = 60  # seconds that a client is told to wait at most
_MEMORY: Final = 0.2  # weight of the newest product in the pace


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of products: places in the queue, bytes of the slab and of each device, one client's share."""

    queue: int
    slab_bytes: int
    device_bytes: Mapping[str, int]
    share: float = 1.0


class AdmissionTicket:
    """One product's place in the queue, until `leave_queue`, and its bytes, until `close`; both are idempotent."""

    def __init__(self, admission: Admission, nbytes: int, device: str, principal: Principal, on_device: int) -> None:
        self.nbytes, self.on_device, self.device, self.principal = nbytes, on_device, device, principal
        self._admission, self._is_queued, self._has_bytes = admission, True, True

    def leave_queue(self) -> None:
        """Release the place in the queue."""
        with self._admission.lock:
            if self._is_queued:
                self._admission.release_place(self)
            self._is_queued = False

    def close(self) -> None:
        """Release everything."""
        self.leave_queue()
        with self._admission.lock:
            if self._has_bytes:
                self._admission.release_bytes(self)
            self._has_bytes = False


class Admission:
    """Counts admitted products, refuses those over a limit, and estimates when to retry; safe from any thread.

    A device's bytes are those of the products that were admitted to it; a product that names none is admitted to the
    one with most bytes free. The slab counts its own bytes.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # products by principal
        self._bytes: Counter[str] = Counter()  # by principal
        self._devices: Counter[str] = Counter()  # bytes by device
        self._seconds = 0.0
        self._last = monotonic()

    @property
    def waiting(self) -> int:
        """Products in the queue."""
        return self._waiting.total()

    @property
    def slab_bytes(self) -> dict[str, int]:
        """Bytes of the slab that admitted products hold, by principal."""
        return dict(self._bytes)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes that admitted products hold of each device."""
        return dict(self._devices)

    @contextmanager
    def admitted(
        self,
        nbytes: int,
        device: str | None = None,
        principal: Principal = ANONYMOUS,
        on_device: int | None = None,
    ) -> Iterator[AdmissionTicket]:
        """Hold a ticket inside the block; raises QueueFull, NoRoom, OverShare with limit, size and retry_after."""
        ticket = self.admit(nbytes, device, principal, on_device)
        try:
            yield ticket
        finally:
            ticket.close()

    def admit(
        self,
        nbytes: int,
        device: str | None = None,
        principal: Principal = ANONYMOUS,
        on_device: int | None = None,
    ) -> AdmissionTicket:
        """Take a place in the queue and bytes, until the ticket is closed; raises as `admitted`.

        A product that is made in tiles takes fewer bytes `on_device` than it has.
        """
        held = nbytes if on_device is None else on_device
        with self.lock:
            self._expect_place(principal)
            self._expect_bytes(nbytes, principal)
            chosen = device or self._freest_device()
            self._expect_device_bytes(held, chosen)
            self._waiting[principal.name] += 1
            self._bytes[principal.name] += nbytes
            self._devices[chosen] += held
            self._last = monotonic()
            return AdmissionTicket(self, nbytes, chosen, principal, held)

    def expect_place(self, principal: Principal = ANONYMOUS, *, ahead: int = 0) -> None:
        """Raise QueueFull or OverShare if another product would be refused, whatever its size.

        `ahead` others of the same principal are about to be admitted.
        """
        with self.lock:
            self._expect_place(principal, ahead)

    def learn(self, seconds: float) -> None:
        """Learn how long a device was busy with a product."""
        with self.lock:
            self._seconds = seconds if self._seconds == 0.0 else (1 - _MEMORY) * self._seconds + _MEMORY * seconds

    def retry_after(self) -> int:
        """Whole seconds until the queue of now is made, by the average product; 1 to 60."""
        devices = max(1, len(self.limits.device_bytes))
        return min(_LONGEST, max(1, ceil(self.waiting * self._seconds / devices)))

    def with_retry_after(self, error: NoRoom) -> NoRoom:
        """The slab's refusal, with the seconds after which to retry."""
        return NoRoom(error.message, **{**error.facts, "retry_after": self.retry_after()})

    def idle_seconds(self) -> float:
        """Seconds since a product was admitted or made; 0 while one is in the queue."""
        return 0.0 if self.waiting else monotonic() - self._last

    def release_place(self, ticket: AdmissionTicket) -> None:
        """Release a place; called under the lock, by its ticket."""
        self._waiting[ticket.principal.name] -= 1
        self._last = monotonic()

    def release_bytes(self, ticket: AdmissionTicket) -> None:
        """Release bytes; called under the lock, by their ticket."""
        self._bytes[ticket.principal.name] -= ticket.nbytes
        self._devices[ticket.device] -= ticket.on_device

    def _expect_place(self, principal: Principal, ahead: int = 0) -> None:
        waiting, own = self.waiting + ahead, self._waiting[principal.name] + ahead
        if waiting >= self.limits.queue:
            facts = {"limit": self.limits.queue, "size": waiting, "retry_after": self.retry_after()}
            raise QueueFull(f"{waiting} products wait already, {self.limits.queue} may", **facts)
        share = max(1, int(self.limits.queue * self._share(principal)))
        if own >= share:
            facts = {"limit": share, "size": own, "retry_after": self.retry_after()}
            raise OverShare(f"{own} products of yours wait already, {share} may", **facts)

    def _expect_bytes(self, nbytes: int, principal: Principal) -> None:
        """Raise OverShare; a share alone lets one product in, however large, where an allowance of bytes does not."""
        held, share = self._bytes[principal.name], self._share(principal)
        own = principal.quota.bytes_in_flight
        limit = int(self.limits.slab_bytes * share) if own is None else min(own, int(self.limits.slab_bytes * share))
        over = held + nbytes > limit and (share < 1 or own is not None)
        if over and (held or (own is not None and nbytes > own)):
            facts = {"limit": limit, "size": held + nbytes, "retry_after": self.retry_after()}
            raise OverShare(f"your products would hold {held + nbytes} bytes, {limit} may be", **facts)

    def _share(self, principal: Principal) -> float:
        """The part of the queue and the slab that a principal may hold."""
        share = principal.quota.share
        return self.limits.share if share is None else share

    def _expect_device_bytes(self, nbytes: int, device: str) -> None:
        limit, size = self.limits.device_bytes.get(device), self._devices[device] + nbytes
        if limit is not None and self._devices[device] and size > limit:
            facts = {"limit": limit, "size": nbytes, "lent": self._devices[device], "retry_after": self.retry_after()}
            raise NoRoom(f"{nbytes} bytes do not fit on {device} beside what was admitted to it", **facts)

    def _freest_device(self) -> str:
        room = {name: limit - self._devices[name] for name, limit in self.limits.device_bytes.items()}
        return max(room, key=lambda name: room[name], default="")
