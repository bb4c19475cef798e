"""WorkerProcess: spawns, watches and reaps one worker process."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final

from app.devices.lease import PriorityLock
from app.devices.process.heartbeat import Hang, HeartbeatMonitor
from app.devices.process.output import relay
from app.devices.process.pickle_cache import PickleSender
from app.devices.process.worker_main import GIB, Channel, DeadlinePage
from app.devices.sandbox import Sandbox
from app.devices.threads import PARKED
from app.errors import ChildDied, ChildTimedOut, DeviceError
from app.observability import logs

_SENT: Final = {-signal.SIGKILL, -signal.SIGTERM}
_PROGRAM: Final = "from app.devices.process.worker_main import main; main()"


class CallQueue(PriorityLock):
    """The calls of a worker; the one that runs sees on the process's `page` whether others wait for its end.

    `has_others` says so of those that wait elsewhere; unless it is set they are taken to.
    """

    page: DeadlinePage | None = None
    has_others = True
    _told: bool | None = None

    def tell(self, *, others: bool) -> None:
        """Set `has_others`."""
        with self._lock:
            self.has_others = others
            self._changed()

    def _changed(self) -> None:
        waits = self.has_others or bool(self._queue)
        if self.page is not None and self._told != waits:
            self._told = waits
            self.page.mark_waited_for(waits)


class WorkerProcess:
    """A new interpreter, never a fork, in a session of its own, so that no terminal's signal reaches it.

    `using` is the lock of the channel, on which `sender` pickles; `used` is true after the first call since its setup,
    `is_killed` if this process killed it; `ended` is set once the process is gone. `hang` is how it was found to hang.
    """

    def __init__(
        self,
        name: str,
        deadline_page: DeadlinePage,
        board_fd: int,
        flag_fd: int,
        descriptors: tuple[int, ...],
        sandbox: Sandbox | None = None,
    ) -> None:
        self.deadline_page, self.sender, self.used = deadline_page, PickleSender(), False
        self._outgrown = 0  # bytes that it was held to and died of
        deadline_page.bound(0, 0)
        self.using, self.ended, self.is_killed = threading.Lock(), threading.Event(), False
        self.hang: Hang | None = None
        self._killed_at = 0.0
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), lifeline, board_fd, flag_fd)
        self.channel: Channel = Connection(ours.detach())
        self.channel.send_bytes(pickle.dumps(sandbox))  # which lies in the socket before the process is there
        try:
            self._process, output = _spawn(name, inherited, descriptors)
        except OSError:
            self.channel.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.heartbeat = HeartbeatMonitor(self.pid, deadline_page)
        self.caller: tuple[str, str | None] | None = None  # the request and the trace of the call under way
        if output is not None:
            relay(output, name, lambda: self.caller)
        self._poll = select.poll()
        self._poll.register(self.channel.fileno(), select.POLLIN)

    def poll(self, seconds: float) -> bool:
        """Whether the worker sends something, or ends, within `seconds`."""
        return bool(self._poll.poll(1000 * seconds))

    @property
    def pid(self) -> int:
        """The process's number, which is its group's too."""
        return self._process.pid

    @property
    def cause(self) -> str:
        """The cause of the process's end, in words."""
        code = self._process.returncode
        if code is None:
            return "still running"
        if self.hang is not None:
            return f"killed since {self.hang.reason}"
        if self._outgrown:
            return f"it took more than {self._outgrown / GIB:.3g} GiB of memory"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    @property
    def was_told_to_end(self) -> bool:
        """Whether the process ended by a signal from outside: ours, an operator's, or the OOM killer's."""
        return self._process.returncode in _SENT

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        with self._lock:
            return self._process.returncode is None and not _has_ended(self.pid, os.WNOHANG)

    def kill(self) -> None:
        """Kill the process and everything it started; a dead one is left alone."""
        with self._lock:
            if self._process.returncode is None:
                self._killed_at = self._killed_at or monotonic()
                self.is_killed = True
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def outlived_kill(self) -> float:
        """Seconds for which the process has outlived its kill; 0 if it has ended, or was not killed."""
        return monotonic() - self._killed_at if self.is_killed and not self.ended.is_set() else 0.0

    def wait(self) -> None:
        """Wait until the process ends, kill its descendants, and reap it."""
        _has_ended(self.pid, 0)
        with self._lock:
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so that the group's number is still its own
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        self._outgrown = 0 if self.was_told_to_end else self._memory_outgrown(usage.ru_maxrss * 1024)
        self.ended.set()

    def _memory_outgrown(self, peak: int) -> int:
        """The memory limit at which the process died, or 0: a refused allocation may equal the memory in use."""
        bound, before = self.deadline_page.memory
        return bound if peak - before > bound / 2 else 0

    def close(self) -> None:
        """Close the connection once no call uses it."""
        with self.using:
            self.channel.close()
        os.close(self._lifeline)


def _has_ended(pid: int, options: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options) is not None


def _spawn(
    name: str, inherited: tuple[int, ...], descriptors: tuple[int, ...]
) -> tuple[subprocess.Popen[Any], IO[bytes] | None]:
    """The process, and what it and its libraries print, where the log is JSON: else that goes where ours does."""
    arguments = [str(number) for number in (*inherited, os.getpid())]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    form, level = logs.configured()
    is_relayed = form == "json"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, *arguments, form, level, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if is_relayed else 2,  # what a device library prints is no answer of ours
        stderr=subprocess.STDOUT if is_relayed else None,
        env={**PARKED, **os.environ, "PYTHONPATH": path},
        pass_fds=[fd for fd in (*inherited, *descriptors) if fd >= 0],
        start_new_session=True,
    )
    return process, process.stdout


def explained(error: ChildDied, run: WorkerProcess, *, ours: bool) -> DeviceError:
    """The error of a call whose process has ended, with the cause of that; `ours`: this process had killed it."""
    if run.hang is not None and not run.hang.is_outside:
        return ChildTimedOut(f"{error.message} ({run.cause})", **error.facts)
    is_outside = run.hang is not None or (run.was_told_to_end and not ours)
    return ChildDied(f"{error.message} ({run.cause})", **error.facts, **({"outside": True} if is_outside else {}))
