"""DeviceWorker: what services ask of a worker, be it a process of this host or another node's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from app.devices.lease import Priority
from app.devices.process.call import PendingCall
from app.devices.process.worker_main import Until, never
from app.errors import TilewiseError


class DeviceWorker(Protocol):
    """As Worker, whose methods say what each does and raises."""

    name: str
    generation: int
    is_lost: bool
    hangs: int
    kills_from_outside: int

    @property
    def pid(self) -> int | None:
        """The process's id here; None if there is none."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why it cannot begin a call now."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether there is no process, and none is wanted until somebody needs one."""
        ...

    @property
    def takes_calls(self) -> bool:
        """Whether calls are not refused."""
        ...

    @property
    def waiting(self) -> int:
        """How many calls wait for their turn."""
        ...

    def tell_waiting(self, *, others: bool) -> None:
        """Have the call that runs see whether others wait for its end who have not come here yet."""
        ...

    def start(self, until: Until = never) -> None:
        """Wait until it is ready."""
        ...

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
        """Run a function in it, which may ask for what `more` gives, or nobody asks."""
        ...

    def begin(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.MEASUREMENT,
        deadline: float = 60.0,
    ) -> PendingCall[Any] | None:
        """Begin a function without waiting; None if that cannot be."""
        ...

    def replace(self, reason: str) -> None:
        """Have a new process, for a reason that is not its work's."""
        ...

    def refuse(self, refusal: TilewiseError | None) -> None:
        """Have calls raise an error before they begin; None: have them begin again."""
        ...

    def expect_calls(self) -> None:
        """Raise what calls are refused with."""
        ...

    def kill(self) -> None:
        """Kill the process; it is replaced."""
        ...

    def close(self) -> None:
        """Take no more calls."""
        ...
