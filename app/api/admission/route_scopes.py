"""The scope that each route needs: one table, by method and path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from starlette.routing import BaseRoute, Mount

from app.services.principal import Scope

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
    "POST /import/{format}": _TUNE,
    "DELETE /imports/{import_id}": _TUNE,
    "DELETE /jobs/{job_id}": _WORK,
    "GET /jobs/{job_id}/result": _WORK,
    "POST /matmul": _MULTIPLY,
    "POST /v2/repository/index": _READ,
    "GET /matrices": _MULTIPLY,
    "GET /matrices/{name}": _MULTIPLY,
    "PUT /matrices/{name}": _MULTIPLY,
    "DELETE /matrices/{name}": _MULTIPLY,
}
_INFERENCE: Final = "/v2/"


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
