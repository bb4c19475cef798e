"""The worker's main loop, and its link to the parent."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias, cast

from app.devices.process import heartbeat
from app.devices.process.pickle_cache import PickleReceiver
from app.devices.sandbox import Sandbox
from app.errors import DeviceError, TilewiseError
from app.observability import logs, request_context

GLANCE: Final = 0.25  # seconds between looks at what no message tells: a renewed deadline, a stop, a death
GIB: Final = 2**30
_MOST: Final = 4 * GIB  # more than ten times what compiling any kernel of ours takes
_LEAST: Final = 1 * GIB
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")  # a container's own, where it is given one
PAGE: Final = 4096
_PR_SET_PDEATHSIG: Final = 1

Channel: TypeAlias = "Connection[Any, Any]"  # generic for type checkers only


class CallLimit(NamedTuple):
    """Moments of the monotonic clock: from `ask` on the function ends of itself, at `kill` its child is killed."""

    ask: float = inf
    kill: float = inf


NEVER: Final = CallLimit()
Until: TypeAlias = Callable[[], CallLimit]  # read every quarter of a second; it may only move forward


def never() -> CallLimit:
    """A call that nothing stops."""
    return NEVER


class CallStopped(Exception):
    """The call was stopped, as its `until` says. Whatever it was about is not to blame."""


def wait(granted: Callable[[float | None], bool], until: Until) -> None:
    """Wait until `granted(seconds)` is true; raises Stopped if it is not when the call should end."""
    if until is never:
        granted(None)
        return
    while not granted(max(0.0, min(GLANCE, until().ask - monotonic()))):
        if until().ask <= monotonic():
            raise CallStopped


def compiler_memory() -> int:
    """The memory limit of a compiler: a few times its need, and at most half of the host's available memory."""
    has = [_MOST * 2]
    with suppress(OSError, StopIteration, ValueError), Path("/proc/meminfo").open(encoding="ascii") as lines:
        has.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        has.append(int(_CGROUP.read_text(encoding="ascii")))
    return max(_LEAST, min(has) // 2)


class MemoryLimit:
    """The limit on a process's private memory (RLIMIT_DATA), lowered for a phase and restored after it.

    Shared memory, such as the slab, and reserved addresses do not count. When an allocation is refused, LLVM ends its
    process, NVRTC its compilation, and Python raises MemoryError.
    """

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        self._peak: int | None = None  # a file that is kept open

    def prepare(self) -> None:
        """Open what is needed, for a process that is to enter a sandbox, which lets nobody write to /proc."""
        with suppress(OSError):
            self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)

    def lower(self, nbytes: int) -> int:
        """Allow `nbytes` more than are in use; returns the memory in use."""
        self.lift()
        self._before = before = resource.getrlimit(resource.RLIMIT_DATA)
        with suppress(OSError):
            if self._peak is not None:
                os.write(self._peak, b"5")  # the peak starts again from here
        resident, data = _taken()
        least = min([data + nbytes, *(each for each in before if each != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_DATA, (least, before[1]))
        return resident

    def lift(self) -> None:
        """Restore the limit."""
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
        self._before = None


def _taken() -> tuple[int, int]:
    """Bytes of memory in use, and of private memory as the limit counts it."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * _PAGE, int(fields[5]) * _PAGE


class DeadlinePage:
    """A page shared by parent and child that says until when the child may work; writing it is no system call.

    Times are CLOCK_MONOTONIC's, which is one clock for all processes.
    """

    def __init__(self, fd: int) -> None:
        self._cells = memoryview(mmap.mmap(fd, PAGE)).cast("d")

    def allow(self, seconds: float) -> None:
        """From now the child may work this long."""
        self._cells[1] = seconds
        self._cells[0] = monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds until the child is to be killed; negative once it is late."""
        return self._cells[0] - monotonic()

    @property
    def allowed(self) -> float:
        """Seconds that the present piece of work was given in all."""
        return self._cells[1]

    def ask_to_stop(self, at: float) -> None:
        """Have the function that runs end of itself from that moment on; infinity: not at all."""
        self._cells[2] = at

    @property
    def left(self) -> float:
        """Seconds until the function that runs is to end of itself; negative once it is late."""
        return self._cells[2] - monotonic()

    def mark_waited_for(self, is_waited_for: bool) -> None:
        """Publish whether other calls wait for the one that runs."""
        self._cells[7] = is_waited_for

    @property
    def is_waited_for(self) -> bool:
        """Whether they do."""
        return bool(self._cells[7])

    def bound(self, nbytes: int, resident: int) -> None:
        """Publish the memory limit of this phase beyond the memory in use; 0: none."""
        self._cells[3], self._cells[4] = nbytes, resident

    @property
    def memory(self) -> tuple[int, int]:
        """The limit published last."""
        return int(self._cells[3]), int(self._cells[4])

    def beat(self) -> None:
        """Write a heartbeat, as this thread."""
        self._cells[6] = threading.get_native_id()
        self._cells[5] += 1

    @property
    def beats(self) -> int:
        """How many heartbeats there have been, of all processes that had the page."""
        return int(self._cells[5])

    @property
    def beating_thread(self) -> int:
        """The system's number of the thread that wrote the last heartbeat; 0 before the first."""
        return int(self._cells[6])


class WorkerLink:
    """The link of a function in a worker to its parent: phases, deadlines, memory limits and the lease."""

    def __init__(self, channel: Channel, deadline_page: DeadlinePage, flag: mmap.mmap | None) -> None:
        self._channel, self._page, self._flag = channel, deadline_page, flag
        self._leased = self._granted = False
        self._limit = MemoryLimit()
        self._receiver = PickleReceiver()

    def prepare(self) -> None:
        """Open what limits need, before the process enters its sandbox."""
        self._limit.prepare()

    def loads(self, message: bytes) -> Any:
        """The value of a message, each of which is to be read here, in order."""
        return self._receiver.loads(message)

    def begin(self, granted: bool) -> None:
        """A function is about to run; `granted` says that it has the device already, for the first lease it takes."""
        self._granted = granted

    def end(self) -> None:
        """The function has ended: no bound of its last phase holds any more."""
        self._bound(0)

    @property
    def left(self) -> float:
        """Seconds until the caller wants the function to end; infinity without a limit."""
        return self._page.left

    @property
    def is_waited_for(self) -> bool:
        """Whether other calls wait for this function's end."""
        return self._page.is_waited_for

    def check(self) -> None:
        """Raise Stopped if the function should end, as phase, lease and offer do."""
        if self._page.left <= 0:
            raise CallStopped

    def phase(self, stage: str, deadline: float, memory: int | None = None) -> None:
        """Start a phase named `stage`; the process is killed if it exceeds `deadline` seconds.

        Its memory limit is `memory` bytes more than are in use, 0 for none; by default a compiler's need in a phase
        "compile", and none otherwise. A process that exceeds it dies, and its error says so.
        """
        self.check()
        self._page.allow(deadline)
        bound = compiler_memory() if stage == "compile" else 0
        self._bound(bound if memory is None else memory)
        if self._granted:  # others may have it meanwhile
            self._granted = False
            self._tell("back")
        self._tell("phase", stage)

    @contextmanager
    def lease(self, deadline: float, *, last: bool = False) -> Iterator[None]:
        """Wait for the device, then work on it for `deadline` seconds at most; waiting has no deadline.

        The phase before goes on afterwards with the time it had left. After the `last` lease the function has nothing
        left to do: its answer says that the device is free. Raises RuntimeError inside another lease.
        """
        if self._leased:
            raise RuntimeError("the device is leased already")
        self.check()
        left = self._page.remaining
        self._bound(0)  # what works on the device may take buffers
        if self._granted:
            self._page.allow(deadline)
        else:
            self._take("lease", deadline)
        self._leased, self._granted = True, False
        try:
            yield
        finally:
            self._leased = False
            self._page.allow(left)
            if not last:
                self._tell("back")

    def _bound(self, nbytes: int) -> None:
        """Limit the process to `nbytes` more; 0 lifts the limit."""
        if nbytes:
            self._page.bound(nbytes, self._limit.lower(nbytes))
        elif self._page.memory[0]:
            self._limit.lift()
            self._page.bound(0, 0)

    def more(self) -> Any:
        """What the caller gives beside the arguments, now; None if that is nothing."""
        self._tell("more")
        return self.loads(self._channel.recv_bytes())

    def offer(self, deadline: float) -> None:
        """Between two launches: renew the lease's deadline; hand the device over first to a better priority."""
        self.check()
        if self._flag is not None and self._flag[0]:
            self._take("offer", deadline)
        else:
            self._page.allow(deadline)

    def _take(self, how: str, deadline: float) -> None:
        self._page.allow(inf)
        self._tell(how, deadline)
        if self._channel.recv_bytes():
            raise CallStopped

    def _tell(self, *message: object) -> None:
        self._channel.send_bytes(pickle.dumps(message))


def main() -> None:
    """Run as a child, of which the arguments are descriptors, the parent, and how to log.

    The descriptors are the connection's, lifeline's, board's and flag's; the log has a format and a level. Ends with
    the parent, whatever the parent dies of: by the kernel's signal, and by the lifeline's end of file.
    """
    connection, lifeline, deadline_page, flag, parent = map(int, sys.argv[1:6])
    logs.configure(cast("logs.LogFormat", sys.argv[6]), sys.argv[7])
    _die_with_parent(parent)
    faulthandler.enable()
    channel: Channel = Connection(connection)
    shared = mmap.mmap(flag, PAGE, prot=mmap.PROT_READ) if flag >= 0 else None
    try:
        page = DeadlinePage(deadline_page)
        link = WorkerLink(channel, page, shared)
        link.prepare()
        failure = _confine(pickle.loads(channel.recv_bytes()))  # noqa: S301 - the parent wrote it
        _watch_lifeline(lifeline)
        heartbeat.start(page)
        serve(channel, link, failure)
    except (EOFError, OSError):
        pass  # the parent closed the connection, or died
    finally:
        # Device libraries have threads and exit handlers of their own that may hang; nothing is left to save.
        sys.stderr.flush()
        os._exit(0)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _confine(sandbox: Sandbox | None) -> TilewiseError | None:
    """Enter the sandbox before there is a second thread, which would stay outside; why that failed, or None."""
    os.umask(0o077)  # what it writes is its user's alone
    try:
        if sandbox is not None:
            sandbox.enter()
    except OSError as error:
        return DeviceError(f"it cannot be confined: {error}; TILEWISE_SANDBOX=off does without")
    return None


def _watch_lifeline(lifeline: int) -> None:
    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def serve(channel: Channel, link: WorkerLink, failure: TilewiseError | None = None) -> None:
    """Set up, say so, then answer one call after another until the connection ends; a failure is the first answer."""
    state = list[Any]()

    def set_up(setup: Callable[..., Any], *arguments: Any) -> None:
        if failure is not None:
            raise failure
        state.append(setup(*arguments))

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(state[0], link, *arguments)

    channel.send_bytes(_answer(link, set_up, channel.recv_bytes()))
    while state:
        channel.send_bytes(_answer(link, run, channel.recv_bytes()))


def _answer(link: WorkerLink, run: Callable[..., Any], request: bytes) -> bytes:
    """Whatever happens is an answer: a value, an error of ours, or the text of any other."""
    try:
        function, arguments, granted, caller = link.loads(request)
        request_context.assign(None if caller is None else request_context.remote(*caller))
        link.begin(granted)
        return pickle.dumps(("done", run(function, *arguments)))
    except CallStopped:
        return pickle.dumps(("stopped", None))
    except TilewiseError as error:
        return pickle.dumps(("error", error))
    except Exception:  # noqa: BLE001 - a child answers for any fault of the function it was handed
        return pickle.dumps(("failed", traceback.format_exc()))
    finally:
        link.end()
