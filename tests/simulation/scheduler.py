"""Threads that take turns, on a clock of their own: who goes on is drawn from a seed where any of them could block.

Each simulated thread is a thread of the system that runs only while it holds the baton, so that a seed determines every
step. Time stands still while any of them can run, and then goes to the next moment that one waits for.

Other threads of the process, such as those of a service that other tests have opened, go on beside a run and have no
part in it, nor does the collection of what they and other tests have left.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_INTERRUPTED: Final = tuple(str(_ROOT / "app" / name) for name in ("services", "devices"))
_START: Final = 1000.0  # of the clock
_STEPS: Final = 200_000  # of one run: more is a loop without an end
_SECONDS: Final = 3600.0  # the same


class Abandoned(BaseException):
    """The simulation is over, or the simulated process was killed: the thread ends where it stands."""


class Stuck(AssertionError):
    """Nobody can go on, and something is not done yet: a wake-up was lost, or locks are taken in a circle."""


class Task:
    """A simulated thread."""

    def __init__(self, simulation: Simulation, name: str, function: Callable[[], None], *, daemon: bool) -> None:
        self.name, self.daemon, self.done = name, daemon, False
        self.waits_for, self.until, self.woken = "", float("inf"), False
        self.doomed = self.suspended = False
        self.ending: list[Callable[[], None]] = []
        self._simulation, self._function = simulation, function
        self.turn = _taken_lock()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        self._simulation.enter()
        try:
            if not self.doomed:
                self._simulation.interrupt()
                self._function()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run has failed
            self._simulation.failed(self, error)
        finally:
            sys.settrace(None)
            self.done = True
            for each in self.ending:
                each()
            self._simulation.baton.release()


def _taken_lock() -> threading.Lock:
    """A lock that one thread takes and another gives back, which is the fastest way to take turns."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: what other tests have left is closed by lines of the service, which would count."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class Simulation:
    """A run from one seed. `now` is its clock; `digest` is the same for every run of the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now, self.steps, self.over = _START, 0, False
        self.baton = _taken_lock()
        self.current: Task | None = None
        self.checks: list[Callable[[], None]] = []
        self._interruptions = self.rng.choice((0.0, 0.01, 0.05))
        self._tasks: list[Task] = []
        self._failure: BaseException | None = None
        self._digest = sha256()
        self._known: dict[CodeType, bool] = {}
        self._inside = threading.local()
        self.enter()

    @property
    def digest(self) -> str:
        """A digest of who went on when."""
        return self._digest.hexdigest()

    @property
    def names(self) -> list[str]:
        """The threads that have not ended."""
        return [task.name for task in self._tasks]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is simulated: before the first step, and once the run is over."""
        return self.over or self.current is None

    @property
    def running(self) -> Task:
        """The thread that runs now."""
        assert self.current is not None, "no simulated thread runs"
        return self.current

    @property
    def is_inside(self) -> bool:
        """Whether the thread that calls is a simulated one, or the one that made the simulation."""
        return getattr(self._inside, "entered", False)

    def enter(self) -> None:
        """Have the thread that calls be one of the simulation's."""
        self._inside.entered = True

    def inside(self, simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is `simulated` for the simulation's threads, and `real` for all others; pickled as `real`."""

        def call(*given: Any, **named: Any) -> Any:
            return (simulated if self.is_inside else real)(*given, **named)

        return update_wrapper(call, real, updated=())

    def clock(self) -> float:
        """Seconds, in place of monotonic and perf_counter."""
        return self.now

    def spawn(self, function: Callable[[], None], name: str, *, daemon: bool = False) -> Task:
        """Add a thread that runs as soon as it is drawn."""
        task = Task(self, name, function, daemon=daemon)
        self._tasks.append(task)
        task.thread.start()
        return task

    @_uncollected()
    def run(self) -> None:
        """Run until every thread that is no daemon has ended; raises what any of them raised, and Stuck."""
        try:
            while self._failure is None and any(not task.daemon for task in self._tasks):
                self._step()
                for check in self.checks:
                    check()
        finally:
            self.over = True
            self._end()
        if self._failure is not None:
            raise self._failure

    def _step(self) -> None:
        self.steps += 1
        if self.steps > _STEPS:
            raise Stuck(f"no end after {_STEPS} steps")
        ready = [task for task in self._tasks if (task.woken or not task.waits_for) and not task.suspended]
        if not ready:
            self._advance()
            return
        self._resume(self.rng.choice(ready))

    def _advance(self) -> None:
        first = min((task.until for task in self._tasks if not task.suspended), default=float("inf"))
        if first > _START + _SECONDS:
            raise Stuck("; ".join(f"{task.name} waits for {task.waits_for}" for task in self._tasks))
        self.now = max(self.now, first)
        for task in self._tasks:
            if task.until <= self.now:
                task.waits_for, task.until = "", float("inf")

    def _resume(self, task: Task) -> None:
        self._digest.update(f"{task.name} {self.now:.6f}\n".encode())
        self.current = task
        task.turn.release()
        self.baton.acquire()
        self.current = None
        if task.done:
            self._tasks.remove(task)
            task.thread.join()

    def _end(self) -> None:
        """Have every thread that is left end."""
        while self._tasks:
            for task in list(self._tasks):
                task.doomed = True
                self._resume(task)

    def failed(self, task: Task, error: BaseException) -> None:
        """Keep the first failure of a thread."""
        error.add_note(f"in {task.name} at {self.now:.3f} s, step {self.steps}")
        self._failure = self._failure or error

    def pause(self) -> None:
        """Let any other thread go on first."""
        self._give_way("", float("inf"))

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        self._give_way("a moment", self.now + max(0.0, seconds))

    def block(self, waits_for: str, seconds: float | None = None) -> bool:
        """Wait until `wake` is called for this thread, or for so many seconds; whether it was woken."""
        return self._give_way(waits_for, float("inf") if seconds is None else self.now + max(0.0, seconds))

    def _give_way(self, waits_for: str, until: float) -> bool:
        task = self.current
        if task is None or self.over:
            if task is not None and waits_for:
                raise Abandoned
            return True
        task.waits_for, task.until, task.woken = waits_for, until, False
        self.baton.release()
        task.turn.acquire()
        woken, task.waits_for, task.until, task.woken = task.woken, "", float("inf"), False
        if task.doomed:
            raise Abandoned
        return woken

    def wake(self, task: Task) -> None:
        """Have a thread that is blocked go on."""
        task.woken = True

    def doom(self, task: Task) -> None:
        """End a thread where it stands, as a killed process's."""
        task.doomed = task.woken = True
        task.suspended = False

    def suspend(self, task: Task) -> None:
        """Have a thread do nothing until it is doomed, as a stopped process's."""
        task.suspended = True

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Give way to no other thread between the lines of the block, nor be slowed by looking at them."""
        sys.settrace(None)
        try:
            yield
        finally:
            if self.current is not None and not self.over:
                self.interrupt()

    def interrupt(self) -> None:
        """Have the thread that calls give way between lines of the service's own code, in this run or in none."""
        if self._interruptions:
            sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function: another thread may go on between any two lines of the service's own code."""
        del event, argument
        code = frame.f_code
        known = self._known.get(code)
        if known is None:
            known = self._known[code] = code.co_filename.startswith(_INTERRUPTED)
        return self._line if known else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del frame, argument
        if event == "line" and not self.over and self.rng.random() < self._interruptions:
            self.pause()
        return self._line
