"""RequestContext: the id of the request that causes what happens now, and the trace that it is part of."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

HEADER: Final = b"x-request-id"
EXTENSION: Final = "tilewise.request"  # of a request's scope's extensions: its RequestContext
_READ: Final = frozenset({HEADER, b"traceparent", b"tracestate"})
_SANE: Final = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
# W3C Trace Context, section 3.2: version, trace-id, parent-id, flags; later versions may append to it.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_FIRST_VERSION: Final = b"00"
_TRACESTATE: Final = 512  # characters that a tracestate may have


class TraceParent(NamedTuple):
    """A caller's place in a trace: its span is the parent of what its request causes."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""


class RequestContext(NamedTuple):
    """A request's id, the caller's place in a trace where it has one, and the span that is under way where one is."""

    request_id: str
    parent: TraceParent | None = None
    span: Any = None  # an observability.spans.Span: kept opaque, so that a request that is not traced imports nothing

    @property
    def trace_id(self) -> str | None:
        """The trace's id, as 32 hexadecimal digits; None outside a trace."""
        if self.span is not None and (found := self.span.trace_id):
            return str(found)
        return None if self.parent is None else self.parent.trace_id


_random_bits = random.getrandbits  # an id is no secret, and this takes a twentieth of a system call's time
_CURRENT: Final[ContextVar[RequestContext | None]] = ContextVar("request context", default=None)
current = _CURRENT.get
assign = _CURRENT.set
restore = _CURRENT.reset


@contextmanager
def entered(context: RequestContext | None) -> Iterator[None]:
    """Have what happens inside the block belong to a request, or to none."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def made_id() -> str:
    """An id of 32 hexadecimal digits, which can be a trace's too."""
    return f"{_random_bits(128):032x}"


def remote(request_id: str, trace_id: str | None) -> RequestContext:
    """The context of a request that another process serves, as far as a log tells it."""
    return RequestContext(request_id, None if trace_id is None else TraceParent(trace_id, "", 0))


def context_of(headers: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    """The context of a request with these headers, their names in lower case.

    A sane X-Request-ID that is sent once is taken; the id is made otherwise. A traceparent that is malformed, or sent
    twice, is none.
    """
    told = [field for field in headers if field[0] in _READ]
    if not told:
        return RequestContext(made_id())
    request_id, parent, state = b"", b"", b""
    for name, value in told:
        if name == HEADER:
            request_id = value if not request_id else b"?"
        elif name == b"traceparent":
            parent = value if not parent else b"?"
        else:
            state = state + b"," + value if state else value
    known = request_id.decode() if request_id and _SANE.fullmatch(request_id) else made_id()
    return RequestContext(known, traceparent_of(parent, state) if parent else None)


def traceparent_of(value: bytes, state: bytes = b"") -> TraceParent | None:
    """What a traceparent says, with its tracestate; None where it is malformed."""
    match = _TRACEPARENT.fullmatch(value.strip(b" \t"))
    if match is None or (match[1] == _FIRST_VERSION and match[5]):
        return None
    kept = state.decode("latin-1") if len(state) <= _TRACESTATE else ""
    return TraceParent(match[2].decode(), match[3].decode(), int(match[4], 16), kept)
