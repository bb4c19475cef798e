"""The parent's side of one call to a child: it watches the deadline, and takes the lease in the child's name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from app.devices.process.run import Run
from app.devices.scheduler import Lease, Priority, Ticket
from app.errors import ChildDied, ChildTimedOut, DeviceError, TilewiseError

_LAST: Final = {"done", "error", "failed"}  # what a child says at the end
_GLANCE: Final = 0.25  # seconds between looks at what no message tells: a renewed deadline, a death while queueing


class Conversation:
    """One call: the request, the messages on the way, the answer.

    `is_broken` says that the child did not answer to the end, and cannot be spoken to again.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        lease: Lease | None,
        priority: Priority,
        *,
        stage: str | None = None,
        leased: bool = False,
    ) -> None:
        self._name, self._run, self._lease, self._priority = name, run, lease, priority
        self._stage, self._leased = stage, leased
        self._ticket: Ticket | None = None
        self._heard: tuple[Any, ...] | None = None
        self.is_broken = True

    def hold(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline: float) -> Any:
        """Run the function in the child and give its value; raises as Child.call says."""
        if self._leased:
            self.take_at_once()
        self.ask(function, arguments, deadline)
        return self.end()

    def take_at_once(self) -> bool:
        """Have the device for the function from its start, where nobody has it or waits for it; whether that is so."""
        self._ticket = self._lease.at_once(self._priority) if self._lease is not None else None
        return self._ticket is not None or self._lease is None

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline: float) -> None:
        """Have the child begin the function; raises ChildDied."""
        self._stage = self._stage or function.__name__
        request = self._run.speaker.dumps((function, arguments, self._ticket is not None))
        self._run.board.allow(deadline)
        with self._alive():
            self._run.channel.send_bytes(request)

    def fileno(self) -> int:
        """The descriptor that is readable once the child has said something."""
        return self._run.channel.fileno()

    def hear(self) -> bool:
        """Take the message that is there: whether it is a value, for which `end` has nothing to wait for."""
        with suppress(EOFError, OSError):  # `end` says so
            self._heard = self._read()
        return self._heard is not None and self._heard[0] == "done"

    def end(self) -> Any:
        """The function's value; raises as Child.call says."""
        with self._alive():
            while (message := self._heard or self._receive())[0] not in _LAST:
                self._heard = None
                self._heed(*message)
        self.is_broken = False
        return self._conclude(*message)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise ChildDied(f"{self._name} died during {self._stage}", stage=self._stage) from error

    def close(self) -> None:
        """Give the lease back, held or queued for."""
        if self._ticket is not None and self._lease is not None:
            self._lease.leave(self._ticket)
        self._ticket = None

    def _receive(self) -> tuple[Any, ...]:
        run, board = self._run, self._run.board
        while not run.hears(max(0.0, min(board.remaining, _GLANCE))):
            if board.remaining <= 0 and not run.hears(0):
                raise ChildTimedOut(
                    f"{self._name}: {self._stage} took more than {board.allowed:g} s",
                    stage=self._stage,
                    deadline=board.allowed,
                )
        return self._read()

    def _read(self) -> tuple[Any, ...]:
        message: tuple[Any, ...] = pickle.loads(self._run.channel.recv_bytes())  # noqa: S301 - our own child wrote it
        return message

    def _heed(self, kind: str, detail: Any = None) -> None:
        if kind == "phase":
            self._stage = detail
        else:
            self.close()
        if kind in {"lease", "offer"}:
            self._take(detail)

    def _take(self, deadline: float) -> None:
        """Wait for the device in the child's name; the child waits for the empty message."""
        if self._lease is not None:
            self._ticket = self._lease.queue(self._priority)
            while not self._ticket.granted.wait(_GLANCE):
                if self._run.ended.is_set():
                    raise EOFError
        self._run.board.allow(deadline)
        self._run.channel.send_bytes(b"")

    def _conclude(self, kind: str, answer: Any) -> Any:
        if kind == "done":
            return answer
        if kind == "failed":
            raise DeviceError(f"{self._name} failed during {self._stage}:\n{answer}", stage=self._stage)
        error: TilewiseError = answer
        if isinstance(error, DeviceError):
            error.facts.setdefault("stage", self._stage)
        raise error
