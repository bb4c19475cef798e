"""RequestGuard: refuses requests by their heads: a foreign Host or Origin, no key, too small a scope, too many."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from time import monotonic
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import Scope as ASGIScope

from app.api.errors import refusal
from app.errors import CrossOrigin, Forbidden, Malformed, Misdirected, TilewiseError, Unauthenticated
from app.observability import request_context
from app.server import PRINCIPAL, Peer
from app.services.access.audit import AuditEntry, AuditLog
from app.services.access.caller import Access, Caller
from app.services.principal import ANONYMOUS, Principal, Scope

Scopes = frozenset[Scope]

PUBLIC: Final[Scopes] = frozenset()  # needs no key
_READ: Final[Scopes] = frozenset({"read"})
_TUNE: Final[Scopes] = frozenset({"tune"})
_MULTIPLY: Final[Scopes] = frozenset({"multiply"})
_WORK: Final[Scopes] = frozenset({"tune", "multiply"})  # either will do
_MANAGE: Final[Scopes] = frozenset({"manage"})
_METRICS: Final[Scopes] = frozenset({"metrics"})
ANY: Final[Scopes] = frozenset({"read", "tune", "multiply", "manage", "metrics"})

_PUBLIC: Final = {"/", "/ui/{page:path}", "/static", "/health/live", "/health/ready", "/login", "/logout"}
_OTHERS: Final[Mapping[str, Scopes]] = {
    "GET /metrics": _METRICS,
    "GET /keys": _MANAGE,
    "POST /keys": _MANAGE,
    "DELETE /keys/{key_id}": _MANAGE,
    "DELETE /bests": _MANAGE,
    "POST /devices/{device}/cordon": _MANAGE,
    "POST /devices/{device}/uncordon": _MANAGE,
    "POST /profile": _MANAGE,
    "POST /tune": _TUNE,
    "POST /workloads": _TUNE,
    "PUT /cache/{namespace}/{key}": _TUNE,
    "DELETE /cache/{namespace}/{key}": _TUNE,
    "POST /workloads/{workload_id}/tune": _TUNE,
    "DELETE /workloads/{workload_id}": _TUNE,
    "DELETE /misses": _TUNE,
    "POST /import/{format}": _TUNE,
    "DELETE /imports/{import_id}": _TUNE,
    "DELETE /jobs/{job_id}": _WORK,
    "POST /jobs/{job_id}/extend": _TUNE,
    "GET /jobs/{job_id}/result": _WORK,
    "POST /matmul": _MULTIPLY,
    "POST /v2/repository/index": _READ,
    "GET /matrices": _MULTIPLY,
    "GET /matrices/{name}": _MULTIPLY,
    "PUT /matrices/{name}": _MULTIPLY,
    "DELETE /matrices/{name}": _MULTIPLY,
}
_INFERENCE: Final = "/v2/"
COOKIE: Final = "tilewise_session"
_SESSION: Final = re.compile(rb"(?:^|;)[ \t]*%b=([^;]*)" % COOKIE.encode())  # RFC 6265, section 4.2.1
_MOMENT: Final = 0.5  # seconds in which the operator's file and the clock are not looked at again
# Heads that are remembered, and of each at most the headers that are looked at, and characters of path and headers: a
# stranger who asks the public routes with long cookies takes no memory.
_REMEMBERED: Final = 1024
_FEW, _SHORT = 12, 1024
_LOOKED_AT: Final = frozenset({b"host", b"authorization", b"cookie", b"origin", b"sec-fetch-site"})
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~!$&'()*+,;=%-]{1,255})(?::([0-9]{0,5}))?")
_JOB: Final = re.compile(rb"/jobs/([0-9a-zA-Z-]{1,64})")
_READING: Final = ("/matmul", "/infer", "/index")  # how the paths end that change nothing, but for these answers:
_CHANGED: Final = frozenset({HTTPStatus.CREATED, HTTPStatus.ACCEPTED})  # a resident matrix, a job
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/=-]{1,512})", re.IGNORECASE)


def scopes_of_route(method: str, path: str) -> Scopes:
    """The scopes of which a route needs one, by its method and its path's template; PUBLIC if it needs no key.

    Reading needs `read`; under /v2 everything else is part of making products.
    """
    if path in _PUBLIC:
        return PUBLIC
    if (found := _OTHERS.get(f"{method} {path}")) is not None:
        return found
    if method == "GET":
        return _MULTIPLY if "sharedmemory" in path else _READ
    if path.startswith(_INFERENCE):
        return _MULTIPLY
    raise LookupError(f"nothing says who may {method} {path}")


class RouteScopes:
    """The scopes that requests need, by their methods and paths."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._exact: dict[tuple[str, str], Scopes] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Scopes]] = []
        for route in routes:
            self._add(route)

    def needed(self, method: str, path: str) -> Scopes:
        """Of which scopes a request needs one. What there is nothing at needs a key, whichever."""
        method = "GET" if method == "HEAD" else method
        if (found := self._exact.get((method, path))) is not None:
            return found
        matches = (scopes for each, pattern, scopes in self._patterns if each == method and pattern.match(path))
        return next(matches, ANY)

    def _add(self, route: BaseRoute) -> None:
        template: str = getattr(route, "path", "")
        methods = {"GET"} if isinstance(route, Mount) else getattr(route, "methods", None) or {"GET"}
        for method in set(methods) - {"HEAD"}:
            scopes = scopes_of_route(method, template)
            if "{" in template or isinstance(route, Mount):
                pattern: re.Pattern[str] = route.path_regex  # type: ignore[attr-defined]  # Route's and Mount's
                self._patterns.append((method, pattern, scopes))
            else:
                self._exact[method, template] = scopes


@dataclass(frozen=True, slots=True)
class HeadFields:
    """What is looked at of a request's head. Header names are in lower case."""

    method: str
    path: str
    version: str
    headers: Sequence[tuple[bytes, bytes]]
    peer: Peer

    @classmethod
    def of(cls, scope: ASGIScope, peer: Peer, headers: Sequence[tuple[bytes, bytes]]) -> HeadFields:
        """Take it from a request's scope."""
        return cls(scope["method"], scope["path"], scope["http_version"], headers, peer)

    def values(self, name: bytes) -> list[bytes]:
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]


class RequestGuard:
    """Decides on a request by its head; its refusals cost no body, no thread and no admission.

    Host may be a name that the service knows as its own, or an IP address, which no DNS answer can turn to another
    host.
    """

    def __init__(
        self,
        access: Callable[[], Access | None],
        routes: Callable[[], Iterable[BaseRoute]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._access, self._routes, self._clock = access, routes, clock
        # Heads that were let in since a moment began: those like them are, until it is over or a key changes.
        self._admitted: dict[tuple[object, ...], Principal] = {}
        self._over, self._generation = 0.0, -1

    def __call__(self, scope: ASGIScope, peer: Peer) -> Response | object:
        """The refusal as a response, or the principal.

        Clients ask the same over and over: what was let in a moment ago costs a look at its headers.
        """
        access = self._access()
        if access is None:
            return ANONYMOUS
        shown = [field for field in scope["headers"] if field[0] in _LOOKED_AT]
        like = (scope["path"], scope["method"], scope["http_version"], peer, *shown)
        now = self._clock()
        if now >= self._over or self._generation != access.keys.generation:
            self._admitted, self._over, self._generation = {}, now + _MOMENT, access.keys.generation
        principal = self._admitted.get(like)
        try:
            if principal is None:
                principal = self._checked(HeadFields.of(scope, peer, shown), access)
                self._keep(like, principal, shown)
            access.rates.take(principal)
        except TilewiseError as error:
            note_denial(access.audit, scope, peer, error)
            return refused(error)
        return principal

    def admit(self, scope: ASGIScope) -> Response | None:
        """Find out who asks if another server than ours has let a request in; gives the refusal, or None."""
        extensions = scope.setdefault("extensions", {})
        access, peer = self._access(), _client(scope)
        if PRINCIPAL in extensions or access is None:
            return None
        try:
            extensions[PRINCIPAL] = self._authorized(HeadFields.of(scope, peer, scope["headers"]), access)
        except TilewiseError as error:
            note_denial(access.audit, scope, peer, error)
            return refused(error)
        return None

    def note_change(self, scope: ASGIScope, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Write an answered request to the audit log, unless it only made a product or opened a session."""
        path: str = scope["path"]
        access = self._access()
        if access is None or (path.endswith(_READING) and status not in _CHANGED):
            return
        job = next((_JOB.fullmatch(value) for name, value in headers if name.lower() == b"location"), None)
        principal = cast("Principal", scope["extensions"].get(PRINCIPAL, ANONYMOUS))
        what = principal.name, scope["method"], path, _client(scope).address, status
        named = job[1].decode() if job else None
        access.audit.changed(AuditEntry(*what, job=named, request_id=request_id_of(scope)))

    @cached_property
    def _scopes(self) -> RouteScopes:
        return RouteScopes(self._routes())

    def _keep(self, like: tuple[object, ...], principal: Principal, shown: list[tuple[bytes, bytes]]) -> None:
        if len(self._admitted) >= _REMEMBERED:
            self._admitted.clear()
        if len(shown) <= _FEW and len(str(like[0])) + sum(len(value) for _, value in shown) <= _SHORT:
            self._admitted[like] = principal

    def _checked(self, head: HeadFields, access: Access) -> Principal:
        """Who asks; raises Malformed, Misdirected, CrossOrigin, Unauthenticated, Forbidden."""
        host = self._host(head, access.hosts)
        if head.method not in _SAFE:
            _expect_own_origin(head, host)
        return self._authorized(head, access)

    def _authorized(self, head: HeadFields, access: Access) -> Principal:
        """Who asks, where it may; raises Unauthenticated, Forbidden."""
        needed = self._scopes.needed(head.method, head.path)
        if needed is PUBLIC:
            return ANONYMOUS
        principal = access.identify(_caller(head))
        if needed.isdisjoint(principal.scopes):
            facts = {"scope": " or ".join(sorted(needed)), "principal": principal.name}
            raise Forbidden(f"{principal.name} may not {head.method} {head.path}", **facts)
        return principal

    @staticmethod
    def _host(head: HeadFields, hosts: frozenset[str]) -> str:
        """The value of Host (RFC 9112, section 3.2), which only HTTP/1.0 may leave out."""
        values = head.values(b"host")
        if len(values) != 1:
            if not values and head.version == "1.0":
                return ""
            raise Malformed(f"a request has one Host header, this one {len(values)}")
        text = values[0].decode("latin-1").strip(" \t")
        if (match := _HOST.fullmatch(text)) is None:
            raise Malformed("the Host header names no host")
        name = match[1].lower().rstrip(".")
        if head.peer.uid is None and not (_is_address(name) or "*" in hosts or name in hosts):
            raise Misdirected(f"this service is not {match[1]}: add the name to TILEWISE_HOSTS if it should be")
        return text.lower()


def principal_of(request: Request) -> Principal:
    """Who asks, as the guard found it."""
    extensions = request.scope.get("extensions") or {}
    return cast("Principal", extensions.get(PRINCIPAL, ANONYMOUS))


def knows_principal(scope: ASGIScope) -> bool:
    """Whether the server has asked the guard."""
    return PRINCIPAL in (scope.get("extensions") or {})


def note_denial(audit: AuditLog, scope: ASGIScope, peer: Peer, error: TilewiseError) -> None:
    """Write a denied request to the audit log."""
    name = str(error.facts.get("principal", ANONYMOUS.name))
    what = name, scope["method"], scope["path"], peer.address, error.status, error.code
    audit.denied(AuditEntry(*what, request_id=request_id_of(scope)))


def request_id_of(scope: ASGIScope) -> str | None:
    """The id of a request, as its server or our middleware found it."""
    context = (scope.get("extensions") or {}).get(request_context.EXTENSION)
    return None if context is None else str(context.request_id)


def refused(error: TilewiseError) -> Response:
    """A refusal, with the challenge that a 401 has (RFC 6750, section 3)."""
    response = refusal(error)
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = 'Bearer realm="tilewise"'
    elif isinstance(error, Forbidden):
        scope = str(error.facts["scope"])
        response.headers["WWW-Authenticate"] = f'Bearer realm="tilewise", error="insufficient_scope", scope="{scope}"'
    return response


def _expect_own_origin(head: HeadFields, host: str) -> None:
    """Raise CrossOrigin if a browser says that another site's page asks (Fetch Metadata; RFC 6454, section 7)."""
    if head.values(b"sec-fetch-site") in ([b"cross-site"], [b"same-site"]):
        raise CrossOrigin("a page of another site may not change anything here")
    for origin in head.values(b"origin"):
        if origin.decode("latin-1").lower().partition("://")[2] != host:
            raise CrossOrigin("a page of another origin may not change anything here")


def _caller(head: HeadFields) -> Caller:
    """What the head says of who asks; raises Unauthenticated if it cannot be read."""
    fields = head.values(b"authorization")
    if not fields:
        return Caller(session=_session(head), peer_uid=head.peer.uid, certificate=head.peer.certificate)
    if len(fields) > 1 or (match := _BEARER.fullmatch(fields[0].strip())) is None:
        raise Unauthenticated("the Authorization header should be: Bearer KEY")
    return Caller(token=match[1].decode(), peer_uid=head.peer.uid, certificate=head.peer.certificate)


def _session(head: HeadFields) -> str | None:
    """The session in the cookies: found in one pass, where a parser of all of them takes a tenth of a second."""
    for value in head.values(b"cookie"):
        if found := _SESSION.search(value):
            return found[1].strip().strip(b'"').decode("latin-1")
    return None


def _client(scope: ASGIScope) -> Peer:
    client = scope.get("client")
    return Peer(client[0] if client else "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
