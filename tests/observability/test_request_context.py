"""Ids and traces as callers send them: what is sane is taken, what is not is made."""

from __future__ import annotations

import re

import pytest

from app.observability.request_context import HEADER, context_of, made_id, traceparent_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"00-{TRACE}-{SPAN}-01".encode()


@pytest.mark.parametrize("sent", [b"a", b"7f3-4.x_Y:z@h/+=", b"x" * 128, b"0" * 32])
def test_a_sane_id_is_taken(sent: bytes) -> None:
    assert context_of([(b"host", b"x"), (HEADER, sent)]).request_id == sent.decode()


@pytest.mark.parametrize("sent", [b"", b" ", b"x" * 129, b"a b", b'a"b', b"a\nb", b"\xff", b"<script>", b"a;b", b"a,b"])
def test_any_other_is_replaced(sent: bytes) -> None:
    assert re.fullmatch("[0-9a-f]{32}", context_of([(HEADER, sent)]).request_id)


def test_an_id_that_is_sent_twice_is_replaced() -> None:
    assert context_of([(HEADER, b"one"), (HEADER, b"one")]).request_id != "one"


def test_ids_differ() -> None:
    assert len({made_id() for _ in range(1000)}) == 1000


def test_a_traceparent_is_read_with_its_state() -> None:
    context = context_of([(b"traceparent", SENT), (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    assert context.parent is not None
    assert context.parent == (TRACE, SPAN, 1, "a=1,b=2")
    assert context.trace_id == TRACE


def test_a_later_version_may_say_more() -> None:
    parent = traceparent_of(f"cc-{TRACE}-{SPAN}-00-what.ever".encode())
    assert parent is not None
    assert parent == (TRACE, SPAN, 0, "")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        SENT[:-1],
        SENT + b"0",
        SENT + b"-00",
        SENT.upper(),
        b"ff" + SENT[2:],
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        SENT.replace(b"-", b"_"),
        SENT + b"," + SENT,
    ],
)
def test_a_malformed_traceparent_is_none(sent: bytes) -> None:
    assert traceparent_of(sent) is None


def test_a_traceparent_that_is_sent_twice_is_none() -> None:
    assert context_of([(b"traceparent", SENT), (b"traceparent", SENT)]).parent is None


def test_a_long_state_is_dropped() -> None:
    parent = traceparent_of(SENT, b"a=" + b"1" * 600)
    assert parent is not None
    assert parent.state == ""
