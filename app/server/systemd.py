"""Tells systemd, by sd_notify's datagrams, that the service listens, lives and stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Final

_LOG = logging.getLogger(__name__)
_SHARE: Final = 3  # pings in the time after which systemd takes the service for hung: one or two may come late


class SystemdNotifier:
    """A socket to the service manager; without one nothing is sent."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self._address, self.watchdog_seconds = address, watchdog_seconds
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> SystemdNotifier:
        """What systemd has set; it is taken out of the environment, since children are not the service."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", None)
        micros, pid = variables.pop("WATCHDOG_USEC", None), variables.pop("WATCHDOG_PID", None)
        ours = pid is None or pid == str(os.getpid())
        if address is None or not address.startswith(("/", "@")):
            return cls(None)
        return cls(address, int(micros) / 1e6 if micros and micros.isdigit() and int(micros) and ours else None)

    def ready(self, status: Callable[[], str]) -> None:
        """Say that the service listens, and go on saying that its event loop runs, which calls this."""
        self._send("READY=1", f"STATUS={_line(status())}")
        if self.watchdog_seconds is not None and self._address is not None:
            self._ping(asyncio.get_running_loop(), self.watchdog_seconds / _SHARE, status)

    def stopping(self) -> None:
        """Say that the service ends. The loop still pings: systemd's watchdog holds until the process is gone."""
        self._send("STOPPING=1", "STATUS=stopping")

    def close(self) -> None:
        """Ping no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ping(self, loop: asyncio.AbstractEventLoop, pause: float, status: Callable[[], str]) -> None:
        # The loop's own timer calls it: a loop that is stuck does not ping, and systemd restarts the service.
        self._timer = loop.call_later(pause, self._ping, loop, pause, status)
        self._send("WATCHDOG=1", f"STATUS={_line(status())}")

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                # systemd drops what does not fit: a manager that does not read must not stop the loop.
                sender.sendto("\n".join(assignments).encode(), name)
        except OSError as error:
            with suppress(OSError):  # a log that cannot be written either
                _LOG.warning("systemd is not told %s: %s", assignments[0], error)


def _line(text: str) -> str:
    """One line: another would be taken for an assignment."""
    return " ".join(text.split())
