"""PendingCall: a call that was sent and is finished later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from app.devices.process.call import RemoteCall

T = TypeVar("T")
U = TypeVar("U")


class PendingCall(Generic[T]):
    """`finish`, which is to be called once whatever happens, waits for the call's end and gives its value.

    It raises as Child.call does. A message has come once `fileno` is readable.
    """

    def __init__(self, conversation: RemoteCall, finish: Callable[[], T]) -> None:
        self._conversation, self.finish = conversation, finish

    def fileno(self) -> int:
        """The descriptor to watch until the child says something."""
        return self._conversation.fileno()

    def is_over(self) -> bool:
        """Hear the message that has come: whether it was the value, so that `finish` need not wait."""
        return self._conversation.hear()

    def then(self, after: Callable[[Callable[[], T]], U]) -> PendingCall[U]:
        """The same call, whose end `after` sees to: it is given `finish`."""
        return PendingCall(self._conversation, partial(after, self.finish))
