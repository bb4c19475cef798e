"""Locks, conditions, events, threads and executors of the simulation, with the interfaces of Python's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import _lru_cache_wrapper, partial
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.scheduler import Simulation, Task

_CLOCKS: Final = ("monotonic", "perf_counter")


class OrderedSet(dict[Any, None]):
    """A set that is walked in the order of insertion, where Python's own walks by addresses."""

    def add(self, item: Any) -> None:
        """Add an item."""
        self[item] = None

    def discard(self, item: Any) -> None:
        """Remove an item if it is there."""
        self.pop(item, None)


class SimulatedLock:
    """A lock; with `again`, its holder may take it once more."""

    def __init__(self, simulation: Simulation, *, again: bool = False) -> None:
        self._simulation, self._again = simulation, again
        self.holder: Task | None = None
        self.depth = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if it is held and that is not waited for, or for too long."""
        simulation = self._simulation
        simulation.pause()
        if simulation.is_idle:
            return True
        if self._again and self.holder is simulation.current:
            self.depth += 1
            return True
        until = None if timeout < 0 else simulation.now + timeout
        while self.holder is not None:
            if not blocking or (until is not None and simulation.now >= until):
                return False
            left = None if until is None else until - simulation.now
            self._waiting.append(simulation.running)
            try:
                simulation.block(f"a lock of {self.holder.name}", left)
            finally:
                self._waiting.remove(simulation.running)
        self.holder, self.depth = simulation.current, 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._simulation.is_idle:
            return
        if self.holder is None:
            raise RuntimeError("release unlocked lock")
        self.depth -= 1
        if self.depth == 0:
            self.holder = None
            for task in self._waiting:
                self._simulation.wake(task)

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self.holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedCondition:
    """A condition with a lock of its own."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._lock = SimulatedLock(simulation, again=True)
        self._waiting: deque[Task] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified, without the lock; whether it was before so many seconds were over."""
        task, depth = self._simulation.running, self._lock.depth
        if self._lock.holder is not task and not self._simulation.is_idle:
            raise RuntimeError("cannot wait on un-acquired lock")
        self._waiting.append(task)
        self._lock.depth = 1
        self._lock.release()
        try:
            notified = self._simulation.block("a condition", timeout)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
        self._lock.acquire()
        self._lock.depth = depth
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds; its last value."""
        until = None if timeout is None else self._simulation.now + timeout
        while not (held := predicate()):
            left = None if until is None else until - self._simulation.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return held

    def notify(self, count: int = 1) -> None:
        """Wake those that have waited longest."""
        if self._lock.holder is not self._simulation.current and not self._simulation.is_idle:
            raise RuntimeError("cannot notify on un-acquired lock")
        for _ in range(min(count, len(self._waiting))):
            self._simulation.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiting))

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class SimulatedEvent:
    """An event."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._is_set = simulation, False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        self._simulation.pause()
        self._is_set = True
        for task in self._waiting:
            self._simulation.wake(task)

    def clear(self) -> None:
        """Have those wait who come from now on."""
        self._simulation.pause()
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for so many seconds; whether it is."""
        self._simulation.pause()
        if not self._is_set:
            task = self._simulation.running
            self._waiting.append(task)
            try:
                self._simulation.block("an event", timeout)
            finally:
                self._waiting.remove(task)
        return self._is_set


class SimulatedThread:
    """A thread, which no run waits for."""

    def __init__(
        self,
        simulation: Simulation,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        name: str = "a thread",
        daemon: bool = False,
    ) -> None:
        del daemon
        self._simulation, self._target, self._arguments, self.name = simulation, target, args, name
        self._task: Task | None = None
        self._ended = SimulatedEvent(simulation)

    def start(self) -> None:
        """Start it."""
        self._task = self._simulation.spawn(self._run, self.name, daemon=True)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._task is not None and not self._task.done

    def _run(self) -> None:
        try:
            self._target(*self._arguments)
        finally:
            self._ended.set()


class SimulatedFuture:
    """What becomes of a submitted function."""

    def __init__(self, simulation: Simulation) -> None:
        self._ended = SimulatedEvent(simulation)
        self._value: Any = None
        self._error: Exception | None = None

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Call the function and keep what comes of it."""
        try:
            self._value = function(*arguments)
        except Exception as error:  # noqa: BLE001 - as an executor does
            self._error = error
        self._ended.set()

    def exception(self) -> Exception | None:
        """The error, once there is an outcome."""
        self._ended.wait()
        return self._error

    def result(self) -> Any:
        """The value, once there is one; raises the function's error."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value


class SimulatedExecutor:
    """An executor of one thread."""

    def __init__(self, simulation: Simulation, workers: int = 1, thread_name_prefix: str = "executor") -> None:
        assert workers == 1
        self._simulation, self._waiting, self._closed = simulation, deque[Any](), False
        self._changed = SimulatedCondition(simulation)
        self._thread = SimulatedThread(simulation, self._run, name=thread_name_prefix)
        self._thread.start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> SimulatedFuture:
        """Have a function called in the thread; raises RuntimeError after the end."""
        future = SimulatedFuture(self._simulation)
        with self._changed:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append((future, function, arguments))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True) -> None:
        """End once all is done that was submitted."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if not self._waiting:
                    return
                future, function, arguments = self._waiting.popleft()
            future.run(function, arguments)


class SimulatedThreading:
    """What a module of the service finds as `threading`: for threads that are not the simulation's the real one."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        simulated: dict[str, Callable[..., Any]] = {
            "Lock": lambda: SimulatedLock(simulation),
            "RLock": lambda: SimulatedLock(simulation, again=True),
            "Condition": lambda: SimulatedCondition(simulation),
            "Event": lambda: SimulatedEvent(simulation),
            "Thread": lambda **given: SimulatedThread(simulation, **given),
            "get_ident": lambda: id(simulation.current),
        }
        self.names = {name: simulation.inside(new, getattr(threading, name)) for name, new in simulated.items()}

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        if self._simulation.is_inside:
            raise AttributeError(f"nothing stands in for threading.{name}")
        return getattr(threading, name)


def replaced(simulation: Simulation, module: ModuleType, name: str, new: Callable[..., Any]) -> Any:
    """A patch of a module's function or class for the simulation's threads, and for no others."""
    return patch.object(module, name, simulation.inside(new, getattr(module, name)))


@contextmanager
def simulated(simulation: Simulation, *modules: ModuleType) -> Iterator[None]:
    """Have modules of the service use the simulation's threads and clock inside the block."""
    inside, threads = simulation.inside, SimulatedThreading(simulation)
    names: dict[str, Any] = {"threading": threads, **threads.names, "sleep": inside(simulation.sleep, time.sleep)}
    names |= {name: inside(simulation.clock, getattr(time, name)) for name in _CLOCKS}
    names["ThreadPoolExecutor"] = inside(partial(SimulatedExecutor, simulation), ThreadPoolExecutor)
    patches = [
        patch.object(module, name, new) for module in modules for name, new in names.items() if name in vars(module)
    ]
    for module in modules:  # what one run has worked out, the next one would not
        for value in vars(module).values():
            if isinstance(value, _lru_cache_wrapper):
                value.cache_clear()
    try:
        for each in patches:
            each.start()
        yield
    finally:
        for each in patches:
            each.stop()
