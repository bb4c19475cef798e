"""Peer: who is at the other end of a connection, and who decides on what it asks."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Scope

PRINCIPAL: Final = "tilewise.principal"  # of a request's scope's extensions: who asks
_CREDENTIALS: Final = struct.Struct("3i")  # ucred: pid, uid, gid (unix(7))
# RFC 4514, section 3.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


class Peer(NamedTuple):
    """Who is at the other end of a connection.

    `address` is an IP address, or empty on a Unix socket, where `uid` is the user's; `certificate` is the subject of a
    verified client certificate, such as CN=ann,O=Example.
    """

    address: str = ""
    uid: int | None = None
    certificate: str | None = None


class Authenticator(Protocol):
    """Decides on a request by its head: before admission, before 100 Continue, before a byte of its body is read."""

    def __call__(self, scope: Scope, peer: Peer) -> Response | object:
        """The refusal, or else what the request's scope keeps under PRINCIPAL. Must not block."""
        ...


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who is at the other end of a transport."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return Peer(uid=uid)
    name: Any = transport.get_extra_info("peername")
    certificate = transport.get_extra_info("peercert")
    address = str(name[0]) if isinstance(name, tuple) else ""
    return Peer(address, certificate=subject_of(certificate["subject"]) if certificate else None)


def subject_of(names: Iterable[Iterable[tuple[str, str]]]) -> str:
    """A certificate's subject as text: RFC 4514, the last name first."""
    parts = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in names]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    """A value as RFC 4514 has it, section 2.4."""
    text = "".join(f"\\{each}" if each in '"+,;<>\\' else each for each in value)
    if text[:1] in {" ", "#"}:
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(text) > 1 else text
