"""Worker: a supervised process that runs functions under deadlines and is replaced when it fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from app.devices.lease import Lease, LeaseTicket, Priority
from app.devices.process.call import PendingCall, RemoteCall, logged_fault
from app.devices.process.heartbeat import INTERVAL, Hang
from app.devices.process.process import CallQueue, WorkerProcess, explained
from app.devices.process.worker_main import GLANCE, PAGE, CallStopped, DeadlinePage, Until, never, wait
from app.devices.sandbox import Sandbox
from app.errors import ChildDied, ChildLost, Closing, DeviceError, TilewiseError

_SHORT_LIFE: Final = 1.0  # seconds: a child that dies younger, and unused, is not replaced until somebody needs one
_LOG: Final = logging.getLogger(__name__)
_LOST: Final = 5.0  # seconds after its kill until a process that does not end is given up
_PATIENCE: Final = 5.0  # seconds that closing waits for a killed process, which a broken driver may keep from ending


class Worker:
    """A child process, in a sandbox, that holds `setup(*arguments)` as its state and runs one function at a time.

    It starts at `start` or the first call, has `starting` seconds for its setup, and ends with this process, whatever
    that dies of. A child that is killed, dies or hangs is replaced in the background. One that does not end of its kill
    is lost: calls raise ChildLost until it has ended, and `on_lost` is told the event of that end. `descriptors` are
    open in it under the same numbers; `lease` is the device's, which the functions take through their Link. `calls`
    is the queue in which calls wait for their turn.
    """

    def __init__(
        self,
        name: str,
        setup: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        descriptors: tuple[int, ...] = (),
        lease: Lease | None = None,
        starting: float = 60.0,
        on_lost: Callable[[threading.Event], None] = lambda _: None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.name, self.generation = name, 0
        self.is_lost, self._on_lost = False, on_lost
        self.hangs = self.kills_from_outside = 0
        self._setup, self._arguments, self._starting = setup, arguments, starting
        self._descriptors, self._lease, self._sandbox = descriptors, lease, sandbox
        self.calls, self._changed = CallQueue(), threading.Condition()
        self._state = "idle"  # idle, wanted, starting, ready, ending; closed at the end
        self._failure: TilewiseError | None = None
        self._refusal: TilewiseError | None = None
        self._run: WorkerProcess | None = None
        self._supervisor: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None if there is no process now."""
        run = self._run
        return run.pid if run is not None else None

    @property
    def trouble(self) -> str | None:
        """Why the worker cannot begin a call now; None if it can."""
        run, state = self._run, self._state
        if self.is_lost:
            return "its process does not end although it was killed"
        if state == "ready" and run is not None:
            return "its process does not answer" if run.heartbeat.is_stopped else None
        if state == "idle":
            return self._failure.message if self._failure is not None else "it has no process"
        return "it is closed" if state == "closed" else "its process is being replaced"

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, and none is wanted until somebody needs one."""
        return self._state == "idle"

    @property
    def takes_calls(self) -> bool:
        """Whether calls are neither refused at once nor wait for a process that does not end."""
        return not self.is_lost and self._refusal is None

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        return self.calls.waiting

    def tell_waiting(self, *, others: bool) -> None:
        """Have the call that runs see whether others wait for its end elsewhere; until told, they are taken to."""
        self.calls.tell(others=others)

    def start(self, until: Until = never) -> None:
        """Wait until the worker is ready; raises as its setup did, or ChildDied, ChildTimedOut, Closing, Stopped."""
        self._ready(until)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.MEASUREMENT,
        deadline: float = 60.0,
        leased: bool = False,
        until: Until = never,
        more: Callable[[], Any] | None = None,
    ) -> Any:
        """Run `function(state, link, *arguments)` in the worker and return its value; calls wait for each other.

        With `leased` the function starts with the lease if the device is free, without a request for it. What `more`
        gives, here, is the value of `link.more()` there, each time.

        `deadline` seconds hold until the function names its first phase. Our errors that it raises are raised here;
        facts `fatal=True` also replace the process. Raises InternalError for others, whose traces are logged,
        ChildTimedOut if a phase exceeded its deadline or the process hung (it is killed), ChildDied if the process died
        (facts: outside, if it was stopped or killed by a signal that was not ours), ChildLost if a killed one does not
        end, and Closing. The lease is released in any case.

        At the first moment of `until` a waiting call ends at once, and a running function at its next phase, lease or
        offer; at the second its process is killed. Raises Stopped.
        """
        with self._turn(priority, until):
            run = self._ready(until)
            with run.using:
                run.used = True
                call = RemoteCall(self.name, run, self._lease, priority, leased=leased, until=until, more=more)
                return self._run_call(call, run, partial(call.hold, function, arguments, deadline))

    @contextmanager
    def _turn(self, priority: Priority, until: Until) -> Iterator[None]:
        """Hold the worker's call lock inside the block; raises Stopped if it is not acquired in time."""
        ticket = self.calls.queue(priority)
        try:
            wait(ticket.granted.wait, until)
            yield
        finally:
            self.calls.leave(ticket)

    def begin(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.MEASUREMENT,
        deadline: float = 60.0,
    ) -> PendingCall[Any] | None:
        """Start `function(state, link, *arguments)` with the lease, without waiting; otherwise as `call`.

        None if the worker or the device is in use or waited for, or there is no process.
        """
        turn = self.calls.try_acquire(priority)
        if turn is None:
            return None
        run = self._lock_ready_process()
        if run is None:
            self.calls.leave(turn)
            return None
        call = RemoteCall(self.name, run, self._lease, priority)
        with ExitStack() as stack, suppress(TilewiseError):
            stack.callback(self._release, call, run, turn)
            if call.try_lease():
                self._run_or_kill(call, run, partial(call.ask, function, arguments, deadline))
                stack.pop_all()
                return PendingCall(call, partial(self._finish, call, run, turn))
        return None

    def _lock_ready_process(self) -> WorkerProcess | None:
        """The process with its channel locked, if it is ready and not in use; else None."""
        with self._changed:
            run = self._run if self._state == "ready" else None
            if run is None or not self.takes_calls or not run.is_alive() or not run.using.acquire(blocking=False):
                return None
            run.used = True
            return run

    def _finish(self, call: RemoteCall, run: WorkerProcess, turn: LeaseTicket) -> Any:
        try:
            return self._run_or_kill(call, run, call.end)
        finally:
            self._release(call, run, turn)

    def _release(self, call: RemoteCall, run: WorkerProcess, turn: LeaseTicket) -> None:
        call.close()
        run.using.release()
        self.calls.leave(turn)

    def kill(self) -> None:
        """Kill the process with everything it started; it is replaced."""
        if (run := self._run) is not None:
            self._end(run)

    def replace(self, reason: str) -> None:
        """Kill the process for a reason that is not its work's: the call that runs fails as by a kill from outside."""
        if (run := self._run) is not None and not run.is_killed:
            run.hang = Hang(is_outside=True, reason=reason)
            self._end(run)

    def refuse(self, refusal: TilewiseError | None) -> None:
        """Have calls raise an error before they begin, those that wait too; None: have them begin again."""
        with self._changed:
            self._refusal = refusal
            self._changed.notify_all()

    def close(self) -> None:
        """Kill the process for good, and wait until it is gone; calls that wait raise Closing."""
        with self._changed:
            self._state = "closed"
            self._changed.notify_all()
        self.kill()
        if self._supervisor is not None:
            self._supervisor.join(_PATIENCE)

    def _run_call(self, call: RemoteCall, run: WorkerProcess, action: Callable[[], Any]) -> Any:
        try:
            return self._run_or_kill(call, run, action)
        finally:
            call.close()

    def _run_or_kill(self, call: RemoteCall, run: WorkerProcess, action: Callable[[], Any]) -> Any:
        """Run a call over the channel; a process that did not answer in full is killed and reaped."""
        try:
            return action()
        except BaseException as error:
            ours = run.is_killed
            known = isinstance(error, TilewiseError | CallStopped)
            fatal = isinstance(error, TilewiseError) and error.facts.get("fatal")
            if not known or call.is_broken or fatal:
                self._end(run)
                self._await_end(run)
            if isinstance(error, ChildDied):
                self._raise_if_closed()
                raise explained(error, run, ours=ours) from None
            raise

    def _await_end(self, run: WorkerProcess) -> None:
        """Wait until a killed process is gone: until then it may use the device and write to memory that it was lent.

        A broken driver may delay that; no longer than until it is lost or closed: that memory is not lent again then.
        """
        while not run.ended.wait(min(GLANCE, _PATIENCE)) and self._state != "closed" and not self.is_lost:
            pass

    def _raise_if_closed(self) -> None:
        if self._state == "closed":
            raise Closing(f"{self.name} is closed") from None

    def _end(self, run: WorkerProcess) -> None:
        with self._changed:
            if self._run is run and self._state == "ready":
                self._state = "ending"
        run.kill()

    def _ready(self, until: Until = never) -> WorkerProcess:
        """Wait for a process that is set up, requesting one if needed; raises the reason for none, or Stopped."""
        with self._changed:
            if self._state == "ready" and self._run is not None and not self._run.is_alive():
                self._state = "ending"
            asked = self._state in {"wanted", "starting"}
            self._expect_calls()
            while self._state != "ready" or self._run is None:
                self._expect_calls()
                if self._state == "closed":
                    raise Closing(f"{self.name} is closed")
                if self._state == "idle" and asked and self._failure is not None:
                    raise type(self._failure)(self._failure.message, **self._failure.facts)
                if self._state == "idle":
                    self._request_process()
                    asked = True
                wait(self._is_changed, until)
            return self._run

    def expect_calls(self) -> None:
        """Raise what calls are refused with, if they are, or ChildLost."""
        with self._changed:
            self._expect_calls()

    def _expect_calls(self) -> None:
        """Raise as `expect_calls`; called under the condition's lock."""
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message, **self._refusal.facts)
        if self.is_lost:
            raise ChildLost(f"{self.name} is lost: {self.trouble}")

    def _is_changed(self, seconds: float | None) -> bool:
        """Wait for the state to change; called under the condition's lock.

        A Condition that is notified in the instant of its timeout says that it was not: the state itself is compared.
        """
        before = self._state, self._run, self.is_lost, self._refusal
        return self._changed.wait(seconds) or before != (self._state, self._run, self.is_lost, self._refusal)

    def _request_process(self) -> None:
        """Ask the supervisor for a process; called under the condition's lock.

        The kernel's parent-death signal is sent when the thread that spawned ends: that thread is the supervisor,
        which lives as long as the child is wanted.
        """
        self._state, self._failure = "wanted", None
        if self._supervisor is None:
            self._supervisor = threading.Thread(target=self._supervise, name=f"{self.name} supervisor", daemon=True)
            self._supervisor.start()
        self._changed.notify_all()

    def _supervise(self) -> None:
        page_fd = os.memfd_create("tilewise-board")
        os.ftruncate(page_fd, PAGE)
        self.calls.page = deadline_page = DeadlinePage(page_fd)
        try:
            while self._await_request():
                self._run_process(deadline_page, page_fd)
        finally:
            self.calls.page = None  # which has a descriptor of its own
            os.close(page_fd)

    def _await_request(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._state in {"wanted", "closed"})
            if self._state == "closed":
                return False
            self._state = "starting"
            return True

    def _run_process(self, deadline_page: DeadlinePage, page_fd: int) -> None:
        """One process from its start to its end."""
        flag = self._lease.flag_fd if self._lease is not None else -1
        try:
            run = WorkerProcess(self.name, deadline_page, page_fd, flag, self._descriptors, self._sandbox)
        except OSError as error:
            self._set_state("idle", DeviceError(f"{self.name} cannot be started: {error}"))
            return
        with self._changed:
            self._run = run
            if self._state == "closed":
                run.kill()
        watch = threading.Thread(target=self._watch, args=(run,), name=f"{self.name} watch", daemon=True)
        watch.start()
        failure = self._set_up(run)
        born = monotonic()
        if failure is None:
            run.heartbeat.is_awake = True
            self.generation += 1
            self._set_state("ready", None)
        else:
            run.kill()
        run.wait()
        watch.join()
        with self._changed:
            self._run, self.is_lost = None, False
        run.close()
        self.kills_from_outside += run.was_told_to_end and not run.is_killed
        if isinstance(failure, ChildDied):
            failure = ChildDied(f"{failure.message} ({run.cause})", **failure.facts)
        useless = not run.used and monotonic() - born < _SHORT_LIFE  # replacing it at once might never end
        is_stopped = run.hang is not None and run.hang.is_outside  # which says nothing of the next one
        is_left = (failure is not None or useless) and not is_stopped
        self._set_state("idle" if is_left else "wanted", failure if is_left else None)

    def _watch(self, run: WorkerProcess) -> None:
        """Look at a process until its end: kill it if it hangs, give it up if it outlives its kill."""
        while not run.ended.wait(INTERVAL):
            if run.is_killed:
                if run.outlived_kill > _LOST and not self.is_lost:
                    self._lose(run)
            elif (hang := run.heartbeat.look()) is not None:
                _LOG.warning("%s hangs: %s; it is killed", self.name, hang.reason)
                run.hang = hang
                self.hangs += 1
                self._end(run)

    def _lose(self, run: WorkerProcess) -> None:
        """Refuse calls until the process has ended."""
        _LOG.error("%s is lost: process %d does not end although it was killed", self.name, run.pid)
        self._on_lost(run.ended)
        with self._changed:
            self.is_lost = True
            self._changed.notify_all()

    def _set_up(self, run: WorkerProcess) -> TilewiseError | None:
        """Send the setup and wait for it; returns its error."""
        call = RemoteCall(self.name, run, None, Priority.PRODUCT, stage="start")
        try:
            call.hold(self._setup, self._arguments, self._starting)
        except TilewiseError as error:
            return error
        except Exception:  # noqa: BLE001 - such as a setup that no child could import: callers must hear of it
            return logged_fault(f"{self.name} cannot be set up", "start")
        return None

    def _set_state(self, state: str, failure: TilewiseError | None) -> None:
        with self._changed:
            if self._state != "closed":
                self._state, self._failure = state, failure
            elif self._run is not None:
                self._run.kill()  # it was being started when the child was closed
            self._changed.notify_all()
