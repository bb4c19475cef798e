"""Routes whose functions take the Request and give the Response, and the router that collects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.openapi.parameters import parameters
from app.api.response import SlabResponse, TextResponse

Endpoint: TypeAlias = Callable[..., Awaitable[Response]]
Handler: TypeAlias = Callable[..., Any]
E = TypeVar("E", bound=Endpoint)
# What one principal is told now (RFC 9111, section 5.2.2).
_OWN: Final = b"cache-control", b"private, no-cache"


class DirectRoute(Route):
    """A route whose function takes the Request, and the path's parameters as text, and gives the Response.

    Nothing stands between them: no dependency is resolved, no answer is validated again. What the OpenAPI document
    tells of it is kept as it was given, since the schemas of all models take longer to build than the rest of a start.
    """

    def __init__(
        self, method: str, path: str, endpoint: Endpoint, query: type[BaseModel] | None = None, **told: Any
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self._method, self._query, self._told = method, query, told

    def described(self) -> APIRoute:
        """The framework's own route, which the OpenAPI document is made from."""
        extra = dict(self._told.get("openapi_extra", ()))
        if self._query is not None:
            extra["parameters"] = [*parameters(self._query), *extra.get("parameters", ())]
        told = self._told | {"openapi_extra": extra, "operation_id": self.name}
        return APIRoute(self.path, self.endpoint, methods=[self._method], **told)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as any route does; the scope then names it."""
        match, found = super().matches(scope)
        return match, found if match is Match.NONE else {**found, "route": self}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, HEAD as GET but for the body, or leave a method that this route does not have to the framework."""
        method = scope["method"]
        if method not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send), **scope["path_params"])
        if self._method == "GET" and all(name != _OWN[0] for name, _ in response.raw_headers):
            response.raw_headers.append(_OWN)
        if method == "HEAD":
            response = _Bodiless(response)
        await response(scope, receive, send)


class DirectRouter:
    """Routes of one tag, in the order in which they are given."""

    def __init__(self, tag: str) -> None:
        self.routes: list[DirectRoute] = []
        self._tag = tag

    def add(self, method: str, path: str, endpoint: Endpoint, **told: Any) -> None:
        """Have `endpoint` answer; what is `told` is APIRoute's, and `query`, the model of the query string."""
        self.routes.append(DirectRoute(method, path, endpoint, tags=[self._tag], **told))

    def get(self, path: str, **told: Any) -> Callable[[E], E]:
        """As `add`, of GET and HEAD."""
        return self._decorator("GET", path, told)

    def post(self, path: str, **told: Any) -> Callable[[E], E]:
        """As `add`, of POST."""
        return self._decorator("POST", path, told)

    def put(self, path: str, **told: Any) -> Callable[[E], E]:
        """As `add`, of PUT."""
        return self._decorator("PUT", path, told)

    def delete(self, path: str, **told: Any) -> Callable[[E], E]:
        """As `add`, of DELETE."""
        return self._decorator("DELETE", path, told)

    def _decorator(self, method: str, path: str, told: dict[str, Any]) -> Callable[[E], E]:
        def decorate(endpoint: E) -> E:
            self.add(method, path, endpoint, **told)
            return endpoint

        return decorate


class DirectDispatch:
    """ASGI middleware that has a route without parameters in its path answer, found by the path itself.

    The framework's router, which tries one route after the other, gets every other request.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[DirectRoute], handlers: Mapping[Any, Handler]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route for route in routes if "{" not in route.path for method in route.methods or ()
        }
        # The handler of Exception belongs to ServerErrorMiddleware, outside of all other middleware.
        known = {kind: handle for kind, handle in handlers.items() if kind is not Exception}
        self._direct = ExceptionMiddleware(self._answer, known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] == "http" and not scope["root_path"]:
            route = self._routes.get((scope["method"], scope["path"]))
            if route is not None:
                scope.update(route=route, endpoint=route.endpoint, path_params={})
                await self._direct(scope, receive, send)
                return
        await self._app(scope, receive, send)

    @staticmethod
    async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
        await scope["route"].handle(scope, receive, send)


class _Bodiless:
    """An answer's status and headers: a body is not even begun, for it may be a stream without an end."""

    def __init__(self, response: Response) -> None:
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        start = {"status": self._response.status_code, "headers": self._response.raw_headers}
        if isinstance(self._response, SlabResponse | TextResponse):
            await self._response.aclose()
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": b""})
