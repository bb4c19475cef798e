"""The parent's side of one call to a child: it watches the deadline, and takes the lease in the child's name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final

from app.devices.process.run import Run
from app.devices.scheduler import Lease, Priority, Ticket
from app.errors import ChildDied, ChildTimedOut, DeviceError, TilewiseError

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
        self.is_broken = True

    def hold(self, function: Callable[..., Any], arguments: tuple[Any, ...], deadline: float) -> Any:
        """Run the function in the child and give its value; raises as Child.call says."""
        self._stage = self._stage or function.__name__
        if self._leased and self._lease is not None:
            self._ticket = self._lease.at_once(self._priority)
        request = pickle.dumps((function, arguments, self._ticket is not None))
        self._run.board.allow(deadline)
        try:
            self._run.channel.send_bytes(request)
            while (message := self._receive())[0] not in {"done", "error", "failed"}:
                self._heed(*message)
        except (EOFError, OSError) as error:
            raise ChildDied(f"{self._name} died during {self._stage}", stage=self._stage) from error
        self.is_broken = False
        return self._conclude(*message)

    def close(self) -> None:
        """Give the lease back, held or queued for."""
        if self._ticket is not None and self._lease is not None:
            self._lease.leave(self._ticket)
        self._ticket = None

    def _receive(self) -> tuple[Any, ...]:
        board, channel = self._run.board, self._run.channel
        while not channel.poll(max(0.0, min(board.remaining, _GLANCE))):
            if board.remaining <= 0 and not channel.poll(0):
                raise ChildTimedOut(
                    f"{self._name}: {self._stage} took more than {board.allowed:g} s",
                    stage=self._stage,
                    deadline=board.allowed,
                )
        message: tuple[Any, ...] = pickle.loads(channel.recv_bytes())  # noqa: S301 - our own child wrote it
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
