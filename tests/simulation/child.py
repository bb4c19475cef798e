"""A worker's process as a simulated thread: the worker's own loop and link run in it; it can be killed and stopped."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from app.devices.process import worker_main
from app.devices.process.heartbeat import Hang
from app.devices.process.pickle_cache import PickleSender
from app.devices.process.worker_main import PAGE, Channel, DeadlinePage, WorkerLink
from tests.simulation.primitives import SimulatedEvent, SimulatedLock
from tests.simulation.scheduler import Simulation

_HANGING = 2.0  # seconds without a heartbeat after which the parent is told


class SimulatedChannel:
    """One end of a connection."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.arrived = SimulatedEvent(simulation)
        self.messages: deque[bytes] = deque()
        self.is_closed = False
        self.other: SimulatedChannel | None = None

    def send_bytes(self, message: bytes) -> None:
        """Send; raises OSError if nobody hears it."""
        self._simulation.pause()
        if self.is_closed or self.other is None or self.other.is_closed:
            raise BrokenPipeError("the other end is closed")
        self.other.messages.append(message)
        self.other.arrived.set()

    def recv_bytes(self) -> bytes:
        """The next message; raises EOFError where there will be none."""
        while not self.poll(None):
            pass
        if not self.messages:
            raise EOFError
        return self.messages.popleft()

    def poll(self, seconds: float | None) -> bool:
        """Whether there is a message, or the end, within so many seconds."""
        if not self._is_readable():
            self.arrived.clear()
            if not self._is_readable():
                self.arrived.wait(seconds)
        return self._is_readable()

    def _is_readable(self) -> bool:
        return bool(self.messages) or self.is_closed or self.other is None or self.other.is_closed

    def fileno(self) -> int:
        """No descriptor of the system's."""
        return -1

    def close(self) -> None:
        """Close this end."""
        self.is_closed = True
        if self.other is not None:
            self.other.arrived.set()


@dataclass
class SimulatedHeartbeat:
    """The heartbeat's monitor of a process that beats unless it is stopped."""

    process: SimulatedProcess
    is_awake: bool = False
    is_stopped: bool = False

    def look(self) -> Hang | None:
        """How the process hangs, or None."""
        since = self.process.stopped_at
        self.is_stopped = since is not None
        late = since is not None and self.process.simulation.now - since >= _HANGING
        return Hang(is_outside=True, reason="it was stopped") if late else None


class SimulatedProcess:
    """In place of WorkerProcess. A killed one goes on for a moment, as a driver may have it."""

    def __init__(
        self,
        simulation: Simulation,
        made: Callable[[SimulatedProcess], None],
        name: str,
        deadline_page: DeadlinePage,
        flag_fd: int,
    ) -> None:
        self.simulation, self.name = simulation, name
        self.deadline_page, self.sender, self.used = deadline_page, PickleSender(), False
        deadline_page.bound(0, 0)
        self.using, self.ended = SimulatedLock(simulation), SimulatedEvent(simulation)
        self.is_killed = self.is_signalled = False
        self.hang: Hang | None = None
        self.stopped_at: float | None = None
        self.heartbeat = SimulatedHeartbeat(self)
        self._killed_at = 0.0
        self._gone = SimulatedEvent(simulation)
        self.channel, self._theirs = SimulatedChannel(simulation), SimulatedChannel(simulation)
        self.channel.other, self._theirs.other = self._theirs, self.channel
        self._flag = mmap.mmap(flag_fd, PAGE, prot=mmap.PROT_READ) if flag_fd >= 0 else None
        self.pid = 1000 + simulation.steps
        self._task = simulation.spawn(self._serve, f"{name} process {self.pid}", daemon=True)
        self._task.ending.append(self._end)
        made(self)

    def _serve(self) -> None:
        try:
            link = WorkerLink(cast("Channel", self._theirs), self.deadline_page, self._flag)
            worker_main.serve(cast("Channel", self._theirs), link)
        except (EOFError, OSError):
            pass

    def _end(self) -> None:
        """The process is gone: the system closes what it had open."""
        self._theirs.is_closed = True
        if not self.simulation.over:
            self.simulation.spawn(self._told, f"{self.name} end", daemon=True)

    def _told(self) -> None:
        self.channel.arrived.set()
        self._gone.set()

    def poll(self, seconds: float) -> bool:
        """Whether the worker sends something, or ends, within so many seconds."""
        return self.channel.poll(seconds)

    @property
    def cause(self) -> str:
        """The cause of the process's end."""
        return "killed" if self.is_signalled else "still running"

    @property
    def was_told_to_end(self) -> bool:
        """Whether it ended by a signal."""
        return self.is_signalled and self.ended.is_set()

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._task.done

    def kill(self) -> None:
        """Kill it."""
        if not self._task.done:
            self._killed_at = self._killed_at or self.simulation.now
            self.is_killed = True
            self.signal()

    def signal(self) -> None:
        """Kill it, whoever does: it ends within a moment, in which it goes on."""
        if self.is_signalled or self._task.done:
            return
        self.is_signalled = True
        delay = self.simulation.rng.choice((0.0, 0.0, 0.01, 0.3))

        def strike() -> None:
            self.simulation.sleep(delay)
            if not self._task.done:
                self.simulation.doom(self._task)

        self.simulation.spawn(strike, f"{self.name} kill", daemon=True)

    def stop(self) -> None:
        """Have it do nothing any more, as SIGSTOP does."""
        if not self._task.done and self.stopped_at is None:
            self.stopped_at = self.simulation.now
            self.simulation.suspend(self._task)

    @property
    def outlived_kill(self) -> float:
        """Seconds for which it has outlived its kill."""
        return self.simulation.now - self._killed_at if self.is_killed and not self.ended.is_set() else 0.0

    def wait(self) -> None:
        """Wait until it is gone."""
        self._gone.wait()
        self.ended.set()

    def close(self) -> None:
        """Close the connection once no call uses it."""
        with self.using:
            self.channel.close()


def processes(simulation: Simulation, made: Callable[[SimulatedProcess], None]) -> Callable[..., SimulatedProcess]:
    """What stands in for WorkerProcess; `made` is told of each."""

    def start(
        name: str, page: DeadlinePage, _board: int, flag: int, _descriptors: Any, _sandbox: Any
    ) -> SimulatedProcess:
        return SimulatedProcess(simulation, made, name, page, flag)

    return start
