"""TlsFiles and ReloadingTls: the certificate and key of a TLS server, which are read again once they are renewed."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from app.observability.limited_log import LimitedLog

_LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 1.0  # seconds, at least, between two looks at the files
Stamp: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: a certificate chain, its key where that is another file, and the CAs of client certificates."""

    certificate: Path
    key: Path | None = None
    clients: Path | None = None

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer, as the files are now; raises OSError, which ssl.SSLError is."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            context.load_verify_locations(self.clients)
            context.verify_mode = ssl.CERT_OPTIONAL  # a client without a certificate may have a key
        return context

    def stamps(self) -> list[Stamp | None]:
        """What changes when a file does, or a link to it."""
        return [_stamp(path) for path in (self.certificate, self.key, self.clients) if path is not None]


class ReloadingTls:
    """The context for the next connection. Files that cannot be read, or do not belong together, change nothing."""

    def __init__(
        self, files: TlsFiles, failed: Callable[[], None] = lambda: None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._files, self._clock, self._on_failure = files, clock, failed
        self._failures = LimitedLog(_LOG, clock)
        self._stamps = files.stamps()
        self._context = files.context()
        self._looked, self._failed = clock(), list[Stamp | None]()

    def context(self) -> ssl.SSLContext:
        """The context of the newest files that were good; they are looked at once a second."""
        now = self._clock()
        if now - self._looked >= _LOOK:
            self._looked = now
            if (stamps := self._files.stamps()) != self._stamps:
                self._reload(stamps)
        return self._context

    def note_failure(self, address: str, error: OSError) -> None:
        """Count a handshake that failed, and log it unless there were too many in this minute."""
        self._on_failure()
        self._failures.warning("%s made no TLS connection: %s", address, error.strerror or error)

    def _reload(self, stamps: list[Stamp | None]) -> None:
        try:
            self._context = self._files.context()
        except OSError as error:
            if stamps != self._failed:  # said once, and tried until it works: a key may follow its certificate
                _LOG.warning("the renewed TLS files cannot be used: %s", error.strerror or error)
            self._failed = stamps
            return
        self._stamps = stamps
        _LOG.info("TLS is served from the renewed %s", self._files.certificate)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - once a second on the event loop, without an object more
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
