"""DeviceQueue: the products that wait for one device, one launch at a time, principals in turn; and for its builds."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from time import monotonic
from typing import Final

from app.devices.fleet import Unit
from app.devices.process import NEVER, CallLimit
from app.errors import Cancelled
from app.worker.serving.launch_class import LaunchClass, class_of
from app.worker.serving.product import MultiplyRequest, MultiplyResult
from kernels.launch import Launch

More = Callable[[], tuple[MultiplyRequest, ...]]  # gives the tiles that a worker asks for while it makes one
_MOST: Final = 2  # classes that are built at a time, for each that the device's compilers build at once
_REMEMBERED: Final = 4096  # classes
_SLOWER: Final = 8.0  # times the slowest build that was seen to end: one that takes longer is taken for hung
_FIRST: Final = 60.0  # seconds for a build while none has been seen to end
_LONGEST: Final = 120.0
_GRACE: Final = 0.8  # seconds that the launch of a product has to end once it is cancelled: a new worker takes two


def nothing() -> None:
    """Do nothing when a product begins."""


class CancelToken:
    """Cancels one product; `begun` is called once its launch is on its way."""

    def __init__(self, begun: Callable[[], None] = nothing) -> None:
        self.begun, self.is_cancelled = begun, False
        self._entries: set[QueuedProduct] = set()  # a product in tiles may wait for several devices
        self._stop = NEVER

    def cancel(self, *, kill: bool = False) -> None:
        """Cancel the product: it leaves the queue at once; if it is being made, its result is discarded.

        A running launch cannot be cancelled. With `kill`, the worker is killed, if it makes no other product and the
        launch has not ended within a second.
        """
        self.is_cancelled = True
        if kill:
            now = monotonic()
            self._stop = CallLimit(now, now + _GRACE)
        for entry in tuple(self._entries):
            entry.queue.cancel(entry)

    def until(self) -> CallLimit:
        """When the worker is asked to stop, and when it is killed."""
        return self._stop

    def entered(self, entry: QueuedProduct) -> None:
        """Take note of the place in the queue; raises Cancelled if the token was cancelled."""
        self._entries.add(entry)
        self.raise_if_cancelled()

    def left(self, entry: QueuedProduct) -> None:
        """Forget the place, which refers to the token: neither waits for the garbage collector then."""
        self._entries.discard(entry)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the token was cancelled."""
        if self.is_cancelled:
            raise Cancelled("the product was cancelled")


@dataclass(eq=False)
class QueuedProduct:
    """A product in a queue: `turn` is set when it leads, was made in another's batch, or was cancelled."""

    queue: DeviceQueue
    request: MultiplyRequest
    token: CancelToken
    may_batch: bool
    turn: threading.Event
    outcome: tuple[MultiplyResult, int] | None = None
    principal: str = ""
    seconds: float = 0.0  # that it is forecast to take, where there are several devices to choose from
    more: More | None = None


class FairQueue:
    """Products that wait: each principal's first come first served, and the principals in turn.

    However many one principal has in the queue, another's first one is next but one. Not thread-safe.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[QueuedProduct]] = {}  # in the order of their turns; none is empty

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[QueuedProduct]:
        """Each product, in the order in which they will be taken."""
        turns = zip_longest(*self._queues.values())
        return (each for turn in turns for each in turn if each is not None)

    def __contains__(self, entry: QueuedProduct) -> bool:
        return entry in self._queues.get(entry.principal, ())

    def append(self, entry: QueuedProduct) -> None:
        """Add an entry behind those of its principal."""
        self._queues.setdefault(entry.principal, deque()).append(entry)

    def appendleft(self, entry: QueuedProduct) -> None:
        """Add an entry before all others."""
        queue = self._queues.pop(entry.principal, deque())
        queue.appendleft(entry)
        self._queues = {entry.principal: queue, **self._queues}

    def popleft(self) -> QueuedProduct:
        """Take the first one of the principal whose turn it is; it is the others' turn then."""
        principal = next(iter(self._queues))
        queue = self._queues.pop(principal)
        entry = queue.popleft()
        if queue:
            self._queues[principal] = queue
        return entry

    def remove(self, entry: QueuedProduct) -> None:
        """Take an entry out."""
        queue = self._queues[entry.principal]
        queue.remove(entry)
        if not queue:
            del self._queues[entry.principal]


class DeviceQueue:
    """The products that wait for one device, principals in turn."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._lock = threading.Lock()
        self._waiting = FairQueue()
        self._running: list[QueuedProduct] = []
        self._since, self._told = 0.0, True

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def seconds(self) -> float:
        """Seconds until all of them are made, by their forecasts."""
        with self._lock:
            waiting, running = sum(one.seconds for one in self._waiting), sum(one.seconds for one in self._running)
            return waiting + max(0.0, running - (monotonic() - self._since))

    def join(self, entry: QueuedProduct) -> None:
        """Join at the end, and wait for the turn; raises Cancelled."""
        with self._lock:
            entry.token.entered(entry)
            self._waiting.append(entry)
            if not self._running:
                self._advance()
            self._tell()
        entry.turn.wait()
        if entry.outcome is None and entry.token.is_cancelled:
            self._pass_on(entry)
            entry.token.raise_if_cancelled()

    def try_lead(self, entry: QueuedProduct) -> bool:
        """Make the entry the leader if the queue is empty; whether it is."""
        with self._lock:
            if len(self):
                return False
            self._running, self._since = [entry], monotonic()
            return True

    def take_batch(self, leader: QueuedProduct, limit: Callable[[int], int]) -> list[QueuedProduct]:
        """Take the leader's batch: queued products with the same launch, at most `limit(count)` of them."""
        with self._lock:
            alike = [one for one in self._waiting if one.may_batch and one.request.launch == leader.request.launch]
            chosen = alike[: limit(len(alike) + 1) - 1] if alike else []
            for one in chosen:
                self._waiting.remove(one)
            self._running = [leader, *chosen]
            return list(self._running)

    def finish(self, others: list[QueuedProduct]) -> None:
        """Give the turn to the next; the `others` of a batch that were not made go first, each alone."""
        with self._lock:
            for one in reversed(others):
                one.may_batch = False
                if one.outcome is None and not one.token.is_cancelled:
                    self._waiting.appendleft(one)
                else:
                    one.turn.set()
            self._advance()

    def cancel(self, entry: QueuedProduct) -> None:
        """Remove an entry that still waits."""
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
                entry.turn.set()

    def _pass_on(self, entry: QueuedProduct) -> None:
        """Let the next one lead if this one was cancelled while it became the leader."""
        with self._lock:
            if self._running == [entry]:
                self._advance()

    def _advance(self) -> None:
        """Make the first that waits the leader; called under the lock."""
        self._running, self._since = [self._waiting.popleft()] if self._waiting else [], monotonic()
        self._tell()
        for one in self._running:
            one.turn.set()

    def _tell(self) -> None:
        """Have the worker know whether others wait; called under the lock."""
        if self._told != bool(self._waiting):
            self._told = not self._told
            self.unit.products.tell_waiting(others=self._told)


class PendingBuilds:
    """The launch classes that serving workers have built, and those that products wait for; safe from any thread.

    A class takes a second or more to compile, and a device's products are made one after the other: where many classes
    come at once, as after a start, the last would wait for all of them. So few are built at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._built: dict[str, tuple[int, set[LaunchClass]]] = {}  # by device: those of a generation of its worker
        self._pending: dict[str, Counter[LaunchClass]] = {}

    def is_built(self, unit: Unit, launch: Launch) -> bool:
        """Whether the serving worker of now has built a launch's class."""
        generation, built = self._built.get(unit.device.id, (-1, set()))
        return generation == unit.products.generation and class_of(launch) in built

    def learn(self, unit: Unit, launch: Launch | None) -> None:
        """Learn that the serving worker has built a launch's class."""
        if launch is None or self.is_built(unit, launch):
            return
        with self._lock:
            generation, built = self._built.get(unit.device.id, (-1, set()))
            if generation != unit.products.generation or len(built) >= _REMEMBERED:
                built = set()
            self._built[unit.device.id] = unit.products.generation, built | {class_of(launch)}

    @contextmanager
    def place(self, unit: Unit, launch: Launch | None) -> Iterator[bool]:
        """Whether a product may have its launch built, inside the block: not while enough other classes are."""
        if launch is None or self.is_built(unit, launch):
            yield True
            return
        kind = class_of(launch)
        with self._lock:
            pending = self._pending.setdefault(unit.device.id, Counter())
            has_place = kind in pending or len(pending) < _MOST * unit.width
            if has_place:
                pending[kind] += 1
        try:
            yield has_place
        finally:
            if has_place:
                self._leave(pending, kind)

    def _leave(self, pending: Counter[LaunchClass], kind: LaunchClass) -> None:
        with self._lock:
            pending[kind] -= 1
            if not pending[kind]:
                del pending[kind]


class BuildDeadlines:
    """How long a device's builds may take, by what they took so far; safe from any thread."""

    def __init__(self) -> None:
        self._slowest: dict[str, float] = {}
        self._lock = threading.Lock()

    def learn(self, unit: Unit, seconds: float) -> None:
        """Learn how long a compilation with its verification took."""
        if seconds:
            with self._lock:
                self._slowest[unit.device.id] = max(seconds, self._slowest.get(unit.device.id, 0.0))

    def seconds(self, unit: Unit, least: float) -> float:
        """Seconds for the next one, `least` or more."""
        slowest = self._slowest.get(unit.device.id)
        return _FIRST if slowest is None else min(_LONGEST, max(least, _SLOWER * slowest))
