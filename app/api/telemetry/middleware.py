"""Counted: ASGI middleware around every request: its id, its metrics, its trace, and the audit of what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.telemetry.metrics import MADE, Metrics
from app.observability import request_context
from app.observability.tracing import Span, TracerSlot, begin_request, epoch_of

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FAULT: Final = 500


class Guard(Protocol):
    """Who is asked before a request that the server has not asked of, and told of what may have changed something."""

    def admit(self, scope: Scope) -> Response | None:
        """The refusal of a request, or None."""
        ...

    def note_change(self, scope: Scope, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Write a request that was answered to the audit log."""
        ...


class Counted:
    """ASGI middleware that counts every request by its route's template, and has changes audited."""

    def __init__(self, app: ASGIApp, metrics: Metrics, guard: Guard, tracing: TracerSlot | None = None) -> None:
        self._app, self._metrics, self._guard, self._tracing = app, metrics, guard, tracing or TracerSlot()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it at its end."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, headers, started, own = 500, (), perf_counter(), _identified(scope)
        tracer = self._tracing.tracer
        span = None if tracer is None else begin_request(tracer, started)

        async def watched(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
                message = {**message, "headers": [*headers, *own]} if own else message
            await send(message)

        try:
            await (self._guard.admit(scope) or self._app)(scope, receive, watched)
        finally:
            if scope["method"] not in _SAFE:
                self._guard.note_change(scope, status, headers)
            route = getattr(scope.get("route"), "path", "none")
            ended = perf_counter()
            method = _method(scope["method"])
            self._metrics.request(method, route, status, ended - started)
            if self._tracing.note_request is not None:
                self._tracing.note_request(method, route, status, started, ended)
            if MADE in scope:
                device, made, _ = scope[MADE]
                self._metrics.sent(device, ended - made, ended - started)
            if span is not None:
                _end(span, scope, status, started)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure how late the loop is while the application serves: before, it opens devices on the loop."""
        lag = self._metrics.loop_lag()

        async def watched(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                lag.start()
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            lag.stop()


def _end(span: Span, scope: Scope, status: int, started: float) -> None:
    """End a request's span, with those of its body's way in and of its product's way out."""
    route = getattr(scope.get("route"), "path", "none")
    if MADE in scope:
        device, made, received = scope[MADE]
        began = epoch_of(started)
        span.child("receive", began).end(began + round(1e9 * received))
        span.child("send", epoch_of(made), {"tilewise.device": device}).end()
    method = _method(scope["method"])
    told = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    context = request_context.current()
    span.describe(f"{method} {route}", told | ({} if context is None else {"tilewise.request_id": context.request_id}))
    span.end(error=f"it was answered {status}" if status >= _FAULT else None)


def _identified(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Give a request that comes by way of another server than ours its id; gives the header that its answer gets."""
    extensions = scope.setdefault("extensions", {})
    if request_context.EXTENSION in extensions:
        return []
    extensions[request_context.EXTENSION] = context = request_context.context_of(scope["headers"])
    request_context.assign(context)
    return [(request_context.HEADER, context.request_id.encode())]


def _method(method: str) -> str:
    """A method that HTTP knows: what callers invent must not grow the registry."""
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"
