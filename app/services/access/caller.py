"""Access: from what a request shows, a key, a session, a certificate or a Unix user, to a principal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from app.errors import Unauthenticated
from app.services.access.api_keys import ApiKeys
from app.services.access.audit import AuditLog
from app.services.access.usage import RequestRates
from app.services.principal import ANONYMOUS, Principal, Scope, user_name

Authentication: TypeAlias = Literal["none", "keys", "mtls"]

_OTHER_USERS: Final[frozenset[Scope]] = frozenset({"read", "tune", "multiply"})


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request shows of who asks."""

    token: str | None = None
    session: str | None = None
    peer_uid: int | None = None
    certificate: str | None = None


class Access:
    """Principals of callers, by the service's way of authentication; what is written of them, and how often each asks.

    `hosts` are the names, in lower case, by which callers may call the service.
    """

    def __init__(self, keys: ApiKeys, audit: AuditLog, authentication: Authentication, hosts: Iterable[str]) -> None:
        self.keys, self.audit, self.authentication = keys, audit, authentication
        self.hosts = frozenset(name.strip().lower().rstrip(".") for name in hosts)
        self.rates = RequestRates()

    def identify(self, caller: Caller) -> Principal:
        """Who asks; a key that is shown is checked, whatever else would do. Raises Unauthenticated."""
        if self.authentication == "none":
            return ANONYMOUS
        if caller.token is not None:
            return self.keys.principal_of_token(caller.token)
        if caller.peer_uid is not None:
            return _user(caller.peer_uid)
        if caller.session is not None:
            return self.keys.principal_of_session(caller.session)
        if caller.certificate is not None:
            return self.keys.principal_of_certificate(caller.certificate)
        raise Unauthenticated("this needs a key: Authorization: Bearer KEY")


def _user(uid: int) -> Principal:
    """A user of this host, by way of the Unix socket: the service's own and root may do everything."""
    name = user_name(uid)
    return Principal(name) if uid in {0, os.geteuid()} else Principal(name, _OTHER_USERS)
