"""Small products of plain bytes take one step, which nobody can tell from the route's own way but by the clock."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from app.api.body import dispatch
from app.api.routes import matmul
from app.dtypes import Array, numpy_dtype, rounded
from app.services.matmul.service import AT_ONCE
from benchmarks.serving import nulldevice
from kernels.problem import Problem
from tests.support.api.service_in_process import RAW, Running, begun, posted, running
from tests.support.api.wire_server import Answers, head

ONE = "m=1&n=1&k=1"
SHAPES = [
    Problem(1, 1, 1),
    Problem(3, 5, 7, batch=4),
    Problem(17, 9, 33, dtype="float64", trans_a=True),
    Problem(8, 24, 16, dtype="float16", trans_b=True),
    Problem(5, 6, 7, batch=2, dtype="bfloat16", trans_a=True, trans_b=True),
    Problem(64, 64, 64, precision="tf32"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("small"), nulldevice.null_fleet) as service:
        at_once(service, ONE, bytes(8))  # it finds the slab's first pages, which is the route's to wait for
        yield service


@pytest.fixture(autouse=True)
def _settled(service: Running) -> Iterator[None]:
    yield
    service.settled()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types of the bodies that the route itself has read."""
    seen, receive = list[str](), dispatch.receive

    async def watched(request: Any, media: str, *rest: Any) -> None:
        seen.append(media)
        await receive(request, media, *rest)

    monkeypatch.setattr(matmul, "receive", watched)
    return seen


def query(problem: Problem) -> str:
    members = {name: getattr(problem, name) for name in Problem.__dataclass_fields__}
    return "&".join(f"{name}={str(value).lower()}" for name, value in members.items())


def operands(problem: Problem) -> tuple[Array, Array]:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng, stack = np.random.default_rng(seed), (problem.batch,) * (problem.batch > 1)
    shapes = ((*stack, *problem.a_shape), (*stack, *problem.b_shape))
    a, b = (rounded(rng.standard_normal(shape), numpy_dtype(problem.dtype)) for shape in shapes)
    return a, b


def at_once(service: Running, asked: str, body: bytes, **headers: object) -> tuple[int, dict[str, str], bytes]:
    """One product whose body comes with its head."""
    with service.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", f"/matmul?{asked}", length=len(body), Content_Type=RAW, **headers) + body)
        return answers.read()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("problem", SHAPES, ids=lambda problem: problem.key)
def test_the_step_and_the_routes_way_answer_alike(service: Running, read: list[str], problem: Problem) -> None:
    a, b = operands(problem)
    body = a.tobytes() + b.tobytes()
    prompt = at_once(service, query(problem), body)
    again = at_once(service, query(problem), body, Accept="*/*")
    assert read == []
    usual = at_once(service, query(problem), body, Accept="application/octet-stream;q=0.5")
    assert read == [RAW]
    assert prompt[0] == 200
    assert prompt[2] == again[2] == usual[2]
    phases = [
        [one.partition(";")[0] for one in told.pop("server-timing").split(", ")] for _, told, _ in (prompt, usual)
    ]
    assert [name for name in phases[0] if name != "build"] == phases[1] == ["receive", "queue", "h2d", "kernel", "d2h"]
    own = {"date": "", "x-request-id": ""}  # each answer has its own
    assert prompt[1] | own == usual[1] | own
    wide = [each.astype(np.float64) for each in (a, b)]
    wide[0] = wide[0].swapaxes(-1, -2) if problem.trans_a else wide[0]
    wide[1] = wide[1].swapaxes(-1, -2) if problem.trans_b else wide[1]
    found = np.frombuffer(prompt[2], numpy_dtype(problem.dtype)).astype(np.float64)
    assert np.allclose(found, (wide[0] @ wide[1]).reshape(-1), rtol=0.02, atol=0.1)


@pytest.mark.parametrize(
    ("asked", "nbytes", "headers", "status"),
    [
        (ONE, 12, {}, 422),
        (ONE, 4, {}, 422),
        ("m=1&n=1", 8, {}, 422),
        ("m=1&n=1&k=1&k=1", 8, {}, 422),
        (f"{ONE}&kernel=naive", 8, {}, 200),
        (f"{ONE}&a=nobody", 4, {}, 404),
        (ONE, 8, {"Accept": "application/json"}, 200),
        (ONE, 8, {"Accept": "text/plain"}, 406),
        (ONE, 8, {"Content_Encoding": "identity"}, 200),
        (ONE, 8, {"Prefer": "respond-async"}, 202),
        ("m=91&n=91&k=91", 2 * 4 * 91 * 91, {}, 200),
    ],
)
def test_whatever_is_not_as_plain_is_left_to_the_route(
    service: Running, read: list[str], asked: str, nbytes: int, headers: dict[str, object], status: int
) -> None:
    assert Problem(91, 91, 91).bytes > AT_ONCE
    answer = at_once(service, asked, bytes(nbytes), **headers)
    assert answer[0] == status, answer[2]
    assert read == ([] if status in {404, 406} else [RAW]) or b"given more than once" in answer[2]


def test_two_headers_of_a_kind_are_looked_at_together(service: Running, read: list[str]) -> None:
    lines = b"Accept: application/json\r\nAccept: */*;q=0.1\r\n\r\n"
    with service.connect() as connection, Answers(connection) as answers:
        connection.sendall(head("POST", f"/matmul?{ONE}", length=8, Content_Type=RAW)[:-2] + lines + bytes(8))
        status, told, _ = answers.read()
    assert (status, told["content-type"], read) == (200, "application/json", [RAW])


def test_a_body_that_comes_later_is_the_routes(service: Running, read: list[str]) -> None:
    assert posted(service, ONE, np.ones(1, np.float32), np.full(1, 3, np.float32))[0] == 200
    with service.connect() as connection, Answers(connection) as answers:
        begun(connection, ONE, 8)
        time.sleep(0.05)
        connection.sendall(np.array([2, 3], np.float32).tobytes())
        assert np.frombuffer(answers.read()[2], np.float32) == [6]
    assert RAW in read


def test_products_that_are_sent_ahead_are_answered_in_order(service: Running, read: list[str]) -> None:
    with service.connect() as connection, Answers(connection) as answers:
        sent = head("POST", f"/matmul?{ONE}", length=8, Content_Type=RAW)
        connection.sendall(b"".join(sent + np.array([2, n], np.float32).tobytes() for n in range(20)))
        assert [float(np.frombuffer(answers.read()[2], np.float32)[0]) for _ in range(20)] == [2 * n for n in range(20)]
    assert read == []


def test_a_device_may_be_named_and_one_that_is_not_there_is_told(service: Running, read: list[str]) -> None:
    assert at_once(service, f"{ONE}&device=opencl:0", bytes(8))[0] == 200
    status, _, body = at_once(service, f"{ONE}&device=opencl:7", bytes(8))
    assert (status, b"unknown_device" in body, read) == (404, True, [])


def test_a_full_queue_refuses_it(service: Running, read: list[str]) -> None:
    admission = service.service.matmul.admission
    with ExitStack() as stack:
        for _ in range(admission.limits.queue):
            stack.enter_context(admission.admitted(1))
        status, told, body = at_once(service, ONE, bytes(8))
        assert (status, b"queue_full" in body, told["retry-after"]) == (503, True, "1")
    assert at_once(service, ONE, bytes(8))[0] == 200
    assert read == []


def test_it_is_counted_as_any_product(service: Running, read: list[str]) -> None:
    def counts() -> dict[bytes, float]:
        with service.connect() as connection, Answers(connection) as answers:
            connection.sendall(head("GET", "/metrics"))
            lines = answers.read()[2].splitlines()
        told = (line.rsplit(b" ", 1) for line in lines if b"_count{" in line and b"#" not in line)
        return {name: float(value) for name, value in told}

    at_once(service, ONE, bytes(8))
    before = counts()
    at_once(service, ONE, bytes(8))
    service.settled()
    more = {name for name, value in counts().items() if value == before.get(name, 0) + 1}
    phases = {b"receive", b"queue", b"h2d", b"kernel", b"d2h", b"send"}
    assert {phase for phase in phases if any(b'phase="%s"' % phase in name for name in more)} == phases
    assert any(name.startswith(b"tilewise_product_seconds_count{") for name in more)
    assert any(b'request_seconds_count{route="/matmul"}' in name for name in more)
    assert read == []


def test_clients_that_leave_at_once_leave_nothing_behind(service: Running) -> None:
    for _ in range(100):
        with service.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(head("POST", f"/matmul?{ONE}", length=8, Content_Type=RAW) + bytes(8))
    service.settled()
    assert at_once(service, ONE, np.array([2, 3], np.float32).tobytes())[2] == np.float32(6).tobytes()
