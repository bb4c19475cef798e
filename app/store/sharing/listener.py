"""Listener: the one connection of a service that PostgreSQL tells of what others commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.errors import StoreFailed
from app.store.engines import normalised, owner_engine
from app.store.sharing.notices import CHANNEL, Notice, received

if TYPE_CHECKING:
    import psycopg

_LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 0.5  # seconds without a notice until the connection is tried
_PAUSE: Final = 0.2  # seconds between two connections


class Listener:
    """Calls `heard` with the notices of all services, and `connected` whenever some may have been missed.

    Both are called by the listener's thread, and may raise StoreFailed: then it connects anew.
    """

    def __init__(
        self, url: str, name: str, heard: Callable[[Sequence[Notice]], None], connected: Callable[[], None]
    ) -> None:
        self._url, self._name, self._heard, self._connected = url, name, heard, connected
        self._closing, self._thread = (
            threading.Event(),
            threading.Thread(target=self._run, name="listener", daemon=True),
        )

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._closing.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        import psycopg  # noqa: PLC0415 - an extra

        while not self._closing.is_set():
            try:
                engine = owner_engine(normalised(self._url), self._name)
                with engine.connect() as connection:
                    self._listen(connection)
            except (SQLAlchemyError, psycopg.Error, StoreFailed) as error:
                _LOG.warning("what other services commit is not heard: %s", error)
                self._closing.wait(_PAUSE)

    def _listen(self, connection: Connection) -> None:
        driver = cast("psycopg.Connection", connection.connection.driver_connection)
        driver.execute(f"LISTEN {CHANNEL}".encode())
        self._connected()
        while not self._closing.is_set():
            notices = [received(each.payload) for each in driver.notifies(timeout=_LOOK, stop_after=1)]
            if notices:
                self._heard(notices)
            else:
                driver.execute(b"SELECT 1")
