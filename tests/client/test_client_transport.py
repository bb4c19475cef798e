"""The client against a socket that misbehaves on purpose."""

from __future__ import annotations

import re
import socket
import threading
import time

import numpy as np
import pytest

from tests.support.client.scripted_server import CLOSE, Scripted, answer
from tilewise import Client, ClientError, KeyInUse, UnreachableError

BEST = {
    "device": "opencl:0",
    "problem": {"m": 8, "n": 8, "k": 8},
    "kernel": "tiled",
    "config": {"BM": 8},
    "match": "default",
    "from_the_future": {"ignored": True},
}
BUSY = answer(503, {"code": "no_room", "error": "no room now"}, Retry_After="0")
JOB = {"id": "abc", "kind": "tune", "state": "queued"}


def test_members_that_a_newer_service_adds_are_ignored() -> None:
    with Scripted([answer(200, BEST)]) as server, Client(server.url) as client:
        best = client.best_config(8, 8, 8, match="exact", trans_a=True)
    assert (best.kernel, best.problem.dtype, best.timing) == ("tiled", "float32", None)
    assert "trans_a=true" in server.heads()[0]
    assert "match=exact" in server.heads()[0]


def test_a_503_with_retry_after_is_asked_again() -> None:
    with Scripted([BUSY, BUSY, answer(200, BEST)]) as server, Client(server.url) as client:
        assert client.best_config(8, 8, 8).match == "default"
    assert len(server.requests) == 3


def test_a_tune_that_was_turned_away_is_asked_again_with_its_whole_body() -> None:
    with Scripted([BUSY, answer(202, JOB)]) as server, Client(server.url) as client:
        assert client.tune([8, (8, 9, 10)]).id == "abc"
    assert server.requests[0] == server.requests[1]
    assert b'"n": 9' in server.requests[1]


def test_retries_are_bounded_and_the_last_error_is_raised() -> None:
    with (
        Scripted([BUSY] * 9) as server,
        Client(server.url, retries=2) as client,
        pytest.raises(ClientError) as refused,
    ):
        client.best_config(8, 8, 8)
    assert (refused.value.status, refused.value.code, str(refused.value)) == (503, "no_room", "no room now")
    assert len(server.requests) == 3


def test_a_503_without_retry_after_is_an_error_at_once() -> None:
    with (
        Scripted([answer(503, {"code": "closing"})] * 2) as server,
        Client(server.url) as client,
        pytest.raises(ClientError, match="503"),
    ):
        client.devices()
    assert len(server.requests) == 1


def test_a_host_without_a_device_is_not_asked_again() -> None:
    none = answer(503, {"code": "no_device", "error": "no device"}, Retry_After="5")
    with (
        Scripted([none] * 2) as server,
        Client(server.url) as client,
        pytest.raises(ClientError, match="no device"),
    ):
        client.best_config(8, 8, 8)
    assert len(server.requests) == 1


def test_an_error_carries_its_status_code_and_whole_body() -> None:
    body = {"code": "too_large", "error": "it is too large", "limit": 10, "size": 11}
    with (
        Scripted([answer(422, body)]) as server,
        Client(server.url) as client,
        pytest.raises(ClientError) as refused,
    ):
        client.best_config(8, 8, 8)
    assert (refused.value.status, refused.value.code, refused.value.body["limit"]) == (422, "too_large", 10)


def test_a_page_that_some_proxy_wrote_is_still_a_typed_error() -> None:
    with Scripted([answer(502, b"<html>bad gateway"), answer(200, b"<html>hello")]) as server:
        client = Client(server.url)
        with pytest.raises(ClientError) as refused:
            client.devices()
        assert (refused.value.status, refused.value.code) == (502, "error")
        with pytest.raises(ClientError, match="no JSON"):
            client.devices()
        client.close()


def test_one_connection_serves_many_requests() -> None:
    with Scripted([answer(200, BEST)] * 5) as server, Client(server.url) as client:
        for _ in range(5):
            client.best_config(8, 8, 8)
    assert server.connections == 1


def test_a_tune_whose_connection_broke_is_sent_again_under_the_same_key() -> None:
    with Scripted([CLOSE, answer(202, JOB), answer(202, JOB)]) as server, Client(server.url) as client:
        assert client.tune([8]).id == "abc"
        assert client.tune([8]).id == "abc"
    first, again, other = (re.search(rb'Idempotency-Key: ("[0-9a-f-]{36}")\r\n', sent) for sent in server.requests)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first[1] == again[1] != other[1]


def test_a_key_whose_first_request_is_still_under_way_is_waited_for() -> None:
    in_use = answer(409, {"code": "key_in_use", "error": "it is under way"}, Retry_After="0")
    with Scripted([CLOSE, in_use, answer(202, JOB)]) as server, Client(server.url) as client:
        assert client.tune([8]).id == "abc"
    with Scripted([in_use]) as server, Client(server.url) as client, pytest.raises(KeyInUse):
        client.tune([8])  # a new key that is in use is somebody else's: waiting would not help


def test_a_get_is_sent_again_when_the_connection_breaks() -> None:
    with Scripted([CLOSE, answer(200, BEST)]) as server, Client(server.url) as client:
        assert client.best_config(8, 8, 8).kernel == "tiled"
    assert server.connections == 2


def test_what_is_gone_after_a_lost_answer_was_deleted() -> None:
    gone = answer(404, {"code": "unknown_matrix", "error": "there is none"})
    with Scripted([CLOSE, gone]) as server, Client(server.url) as client:
        client.delete("w")
    assert server.connections == 2
    with Scripted([gone]) as server, Client(server.url) as client, pytest.raises(ClientError, match="there is none"):
        client.delete("w")


def test_an_idle_connection_that_was_closed_is_not_written_to() -> None:
    with Scripted([answer(200, BEST), answer(202, JOB)]) as server, Client(server.url) as client:
        client.best_config(8, 8, 8)
        server.hang_up()
        assert client.tune([8]).id == "abc"
    assert server.connections == 2


def test_a_product_cut_short_is_asked_for_again_and_comes_whole() -> None:
    c = np.arange(6, dtype=np.float32).reshape(2, 3)
    short = answer(200, c.tobytes()).replace(b"Content-Length: 24", b"Content-Length: 24\r\nConnection: close")[:-4]
    whole = answer(
        200, c.tobytes(), X_Kernel="tiled", X_Config="BM=8,BN=4", X_Match="exact", Server_Timing="h2d;dur=1.5"
    )
    with Scripted([short, whole]) as server, Client(server.url) as client:
        made = client.product(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32))
    assert np.array_equal(made.c, c)
    assert (made.kernel, made.config, made.match, made.timing_ms) == (
        "tiled",
        {"BM": 8, "BN": 4},
        "exact",
        {"h2d": 1.5},
    )


def test_a_product_of_another_size_is_refused_not_reshaped() -> None:
    with (
        Scripted([answer(200, b"\0" * 20)]) as server,
        Client(server.url) as client,
        pytest.raises(ClientError, match="24 bytes were expected, the answer has 20"),
    ):
        client.matmul(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32))


def test_the_answer_to_a_body_that_was_not_read_to_its_end_is_still_seen() -> None:
    """A service that refuses by the headers answers and closes while the client still sends."""
    refusal = answer(413, {"code": "body_too_large", "error": "too large"}, close=True)
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.sendall(refusal)
        time.sleep(0.2)
        connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    big = np.zeros((3000, 3000), np.float32)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listener, Client(url, shared_memory=False) as client, pytest.raises(ClientError) as refused:
        client.matmul(big, big)
    thread.join()
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")


def test_nobody_listening_and_nobody_answering_are_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout=0.2) as client, pytest.raises(UnreachableError, match="did not answer in time"):
            client.devices()
    with Client(url) as client, pytest.raises(UnreachableError, match="nothing listens"):
        client.devices()
    assert not Client(url).ready(wait=0.15)


def test_a_base_path_and_a_bare_host_are_addresses_too() -> None:
    with Scripted([answer(200, {"devices": []})] * 2) as server:
        with Client(server.url + "/tilewise/") as client:
            assert client.devices() == []
        with Client(server.url.removeprefix("http://")) as client:
            assert client.devices() == []
    assert server.heads() == ["GET /tilewise/devices HTTP/1.1", "GET /devices HTTP/1.1"]
    with pytest.raises(ValueError, match="http://host:port"):
        Client("ftp://host")


def test_threads_share_a_client_each_on_its_own_connection() -> None:
    with Scripted([answer(200, BEST)] * 8) as server, Client(server.url) as client:
        threads = [threading.Thread(target=client.best_config, args=(8, 8, 8)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
    assert len(server.requests) == 8
    assert 1 <= server.connections <= 8
