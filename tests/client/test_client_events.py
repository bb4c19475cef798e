"""Streams of events: read as they come, resumed where they broke."""

from __future__ import annotations

import pytest

from tests.support.client.scripted_server import CLOSE, Scripted, answer
from tilewise import Client, ClientError, UnreachableError
from tilewise._sse import Parser

OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
FIRST = b': hello\n\nid: 2\nevent: trial\ndata: {"kernel": "naive"}\n\nid: 3\nevent: progress\ndata: {"done": 1}\n\n'
LAST = b'id: 5\r\nevent: end\r\ndata: {"state":\r\ndata:  "succeeded"}\r\n\r\n'


def test_comments_are_no_events_and_data_may_take_several_lines() -> None:
    events = [event for event in Parser().feed(FIRST + LAST) if event]
    assert [(event.id, event.name) for event in events] == [(2, "trial"), (3, "progress"), (5, "end")]
    assert events[2].data == {"state": "succeeded"}


def test_a_stream_may_come_in_pieces_of_any_size() -> None:
    parser = Parser()
    events = [event for byte in FIRST + LAST for event in parser.feed(bytes([byte]))]
    assert events == list(Parser().feed(FIRST + LAST))


def test_an_event_whose_empty_line_never_came_is_not_told() -> None:
    assert [event and event.id for event in Parser().feed(FIRST.rstrip(b"\n") + b"\n")] == [None, 2]


def test_a_broken_stream_is_resumed_after_the_last_event() -> None:
    busy = answer(503, {"code": "closing"}, close=True, Retry_After="1")
    with Scripted([OPEN + FIRST, CLOSE, busy, OPEN + LAST]) as server, Client(server.url) as client:
        assert [event.id for event in client.events("abc")] == [2, 3, 5]
    assert b"Last-Event-ID" not in server.requests[0]
    assert all(b"Last-Event-ID: 3\r\n" in request for request in server.requests[1:])


def test_an_unknown_job_is_an_error_at_once() -> None:
    with (
        Scripted([answer(404, {"code": "unknown_job"}, close=True)]) as server,
        Client(server.url) as client,
        pytest.raises(ClientError) as refused,
    ):
        list(client.events("abc"))
    assert refused.value.code == "unknown_job"


def test_patience_with_a_service_that_is_gone_ends() -> None:
    with Scripted([OPEN + FIRST]) as server, Client(server.url) as client:
        stream = client.events("abc", patience=0.3)
        assert [next(stream).id, next(stream).id] == [2, 3]
    with pytest.raises(UnreachableError, match="nothing listens"):
        next(stream)


def test_waiting_for_a_job_follows_its_events_then_reads_it() -> None:
    queued = {"id": "abc", "kind": "tune", "state": "running"}
    done = {**queued, "state": "succeeded", "progress": {"done": 3, "total": 9, "search_best_ms": 0.5}}
    with Scripted([answer(202, queued), OPEN + LAST, answer(200, done)]) as server, Client(server.url) as client:
        job = client.tune([8], wait=True)
    assert (job.state, job.progress.done) == ("succeeded", 3)
    assert job.ended
