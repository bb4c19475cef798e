"""Operands and results in the caller's own shared memory, registered and named by tritonclient."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from app.api.inference.shared_memory import is_local
from app.cli.spawn import Started, started
from app.dtypes import Array
from tests.support.api.http_client import calling

A = np.random.default_rng(1).standard_normal((16, 24), dtype=np.float32)
B = np.random.default_rng(2).standard_normal((24, 8), dtype=np.float32)
C_BYTES = 16 * 8 * 4
FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is


@pytest.fixture
def server(live: Started) -> Iterator[Any]:
    with triton.InferenceServerClient(live.url.removeprefix("http://")) as client:
        yield client
        client.unregister_system_shared_memory()


@contextmanager
def region(server: Any, name: str, nbytes: int) -> Iterator[Any]:
    key = f"/mm-{secrets.token_hex(8)}"
    handle = shm.create_shared_memory_region(name, key, nbytes, create_only=True)
    try:
        server.register_system_shared_memory(name, key, nbytes)
        yield handle
    finally:
        shm.destroy_shared_memory_region(handle)


def inputs(at: int = 0) -> list[Any]:
    a, b = triton.InferInput("A", list(A.shape), "FP32"), triton.InferInput("B", list(B.shape), "FP32")
    return [a.set_shared_memory("operands", A.nbytes), b.set_shared_memory("operands", B.nbytes, at or A.nbytes)]


def output(nbytes: int = C_BYTES, offset: int = 0) -> Any:
    wanted = triton.InferRequestedOutput("C")
    wanted.set_shared_memory("product", nbytes, offset)
    return wanted


def contents(handle: Any, offset: int = 0) -> Array:
    return np.array(shm.get_contents_as_numpy(handle, np.float32, [16, 8], offset))


@pytest.mark.slow
def test_operands_and_the_product_stay_in_shared_memory(server: Any) -> None:
    with (
        region(server, "operands", A.nbytes + B.nbytes) as operands,
        region(server, "product", 64 + C_BYTES) as product,
    ):
        shm.set_shared_memory_region(operands, [A, B])
        result = server.infer("matmul", inputs(), outputs=[output(offset=64)])
        told = result.get_output("C")
        assert (told["shape"], "data" in told, "parameters" in told) == ([16, 8], False, False)
        np.testing.assert_allclose(contents(product, 64), A @ B, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(server.infer("matmul", inputs()).as_numpy("C"), A @ B, rtol=1e-4, atol=1e-5)


def test_one_operand_may_come_in_the_body(server: Any) -> None:
    with region(server, "operands", A.nbytes) as operands:
        shm.set_shared_memory_region(operands, [A])
        b = triton.InferInput("B", list(B.shape), "FP32").set_data_from_numpy(B)
        for given in ([inputs()[0], b], [b, inputs()[0]]):
            np.testing.assert_allclose(server.infer("matmul", given).as_numpy("C"), A @ B, rtol=1e-4, atol=1e-5)


def test_registering_telling_and_forgetting(server: Any) -> None:
    assert server.get_system_shared_memory_status() == []
    server.unregister_system_shared_memory("operands")  # nothing there is no error
    with region(server, "operands", 4096), region(server, "it's another?", 64):
        (told,) = server.get_system_shared_memory_status("operands")
        assert (told["name"], told["offset"], told["byte_size"]) == ("operands", 0, 4096)
        assert [each["name"] for each in server.get_system_shared_memory_status()] == ["it's another?", "operands"]
        with pytest.raises(InferenceServerException, match="registered already"):
            server.register_system_shared_memory("operands", told["key"], 4096)
        server.unregister_system_shared_memory("operands")
        with pytest.raises(InferenceServerException, match="no system shared memory region operands"):
            server.get_system_shared_memory_status("operands")
        server.unregister_system_shared_memory()
        assert server.get_system_shared_memory_status() == []


@pytest.mark.parametrize(
    ("key", "offset", "nbytes", "words"),
    [
        ("/mm-is-not-there", 0, 64, "cannot be opened: No such file"),
        ("/../etc/passwd", 0, 64, "is no key"),
        ("/..", 0, 64, "is no key"),
        ("", 0, 64, "key"),
        ("/tilewise.slab", 0, 64, "the service's own"),
        ("tilewise.slab", 0, 64, "the service's own"),
        ("{key}", 0, 4097, "has 4096 bytes"),
        ("{key}", 4095, 2, "has 4096 bytes"),
        ("{key}", 2**63 - 1, 2**63 - 1, "has 4096 bytes"),
        ("{key}", 0, 0, "byte_size"),
        ("{key}", -1, 64, "offset"),
        ("{key}", 0, 2**80, "byte_size"),
    ],
)
def test_memory_that_is_not_there_or_too_small_is_not_registered(
    server: Any, key: str, offset: int, nbytes: int, words: str
) -> None:
    with named(4096) as found, pytest.raises(InferenceServerException, match=words) as refused:
        server.register_system_shared_memory("mine", key.format(key=found), nbytes, offset)
    assert refused.value.status() in {"400", "422"}
    assert server.get_system_shared_memory_status() == []


def test_only_plain_memory_of_the_services_own_user_is_registered(server: Any) -> None:
    with named(4096) as key:
        os.chown(FOLDER / key, os.geteuid() + 1, -1)
        with pytest.raises(InferenceServerException, match="not owned by the user"):
            server.register_system_shared_memory("mine", key, 64)
    link = FOLDER / f"mm-{secrets.token_hex(8)}"
    for target in ("/etc/passwd", "/dev/zero"):
        link.symlink_to(target)
        try:
            with pytest.raises(InferenceServerException, match="cannot be opened"):
                server.register_system_shared_memory("mine", link.name, 64)
        finally:
            link.unlink()


@contextmanager
def named(nbytes: int) -> Iterator[str]:
    handle = shm.create_shared_memory_region("", f"mm-{secrets.token_hex(8)}", nbytes, create_only=True)
    try:
        yield handle._shm_key
    finally:
        shm.destroy_shared_memory_region(handle)


def test_a_part_outside_its_region_is_refused(server: Any) -> None:
    with region(server, "operands", A.nbytes + B.nbytes), region(server, "product", C_BYTES):
        for given, wanted, words in (
            (inputs(at=A.nbytes + 1), output(), "not within"),
            (inputs(at=2**63 - 1), output(), "not within"),
            (inputs(), output(C_BYTES - 4), "C takes 512 bytes, the memory for it has 508"),
            (inputs(), output(offset=4), "not within"),
            ([inputs()[0].set_shared_memory("operands", 4), inputs()[1]], output(), "takes 1536 bytes, not 4"),
            ([inputs()[0].set_shared_memory("nowhere", A.nbytes), inputs()[1]], output(), "no shared memory region"),
        ):
            with pytest.raises(InferenceServerException, match=words):
                server.infer("matmul", given, outputs=[wanted])


def test_memory_that_its_owner_shortens_costs_an_error_not_the_service(server: Any, live: Started) -> None:
    with region(server, "operands", A.nbytes + B.nbytes) as operands, region(server, "product", C_BYTES) as product:
        for handle, words in ((product, "product is shorter"), (operands, "operands is shorter")):
            os.truncate(FOLDER / handle._shm_key.removeprefix("/"), 0)
            with pytest.raises(InferenceServerException, match=words):
                server.infer("matmul", inputs(), outputs=[output()])
        assert server.is_server_ready()
    assert live.process.poll() is None


def test_device_memory_without_a_gpu_is_refused_with_the_reason(server: Any) -> None:
    assert server.get_cuda_shared_memory_status() == []
    server.unregister_cuda_shared_memory()
    server.unregister_cuda_shared_memory("mine")
    with pytest.raises(InferenceServerException, match="no device cuda:0 here"):
        server.register_cuda_shared_memory("mine", "A" * 86 + "==", 0, 64)
    with pytest.raises(InferenceServerException, match="raw_handle"):
        server.register_cuda_shared_memory("mine", "no base64!", 0, 64)
    with pytest.raises(InferenceServerException, match="no cuda shared memory region mine"):
        server.get_cuda_shared_memory_status("mine")


def test_no_descriptor_is_left_behind(server: Any, live: Started) -> None:
    def held() -> int:
        return len(list(Path(f"/proc/{live.process.pid}/fd").iterdir()))

    before = held()
    for _ in range(20):
        with ExitStack() as stack:
            for index in range(10):
                stack.enter_context(region(server, f"region {index}", 4096))
            with pytest.raises(InferenceServerException, match="registered already"):
                stack.enter_context(region(server, "region 3", 4096))
            assert held() >= before + 10
            server.unregister_system_shared_memory()
    assert held() <= before + 2


def test_callers_on_other_hosts_have_no_shared_memory(server: Any, client: httpx.Client) -> None:
    far = {"X-Forwarded-For": "192.0.2.7"}  # as a proxy on this host tells whom it asks for
    parts = [{"shared_memory_region": "operands", "shared_memory_byte_size": 4} for _ in "AB"]
    tensors = [{"name": name, "datatype": "FP32", "shape": [1, 1]} for name in "AB"]
    inside = [tensor | {"parameters": part} for tensor, part in zip(tensors, parts, strict=True)]
    outside = [tensor | {"data": [2.0]} for tensor in tensors]
    wanted = [{"name": "C", "parameters": parts[0]}]
    with region(server, "operands", 4096), named(4096) as key:
        told = {"key": key, "byte_size": 64}
        handle = {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 64}
        for method, path, body in (
            ("POST", "systemsharedmemory/region/mine/register", told),
            ("POST", "cudasharedmemory/region/mine/register", handle),
            ("GET", "systemsharedmemory/status", None),
            ("GET", "systemsharedmemory/region/operands/status", None),
            ("GET", "cudasharedmemory/status", None),
            ("POST", "systemsharedmemory/unregister", None),
            ("POST", "systemsharedmemory/region/operands/unregister", None),
            ("POST", "models/matmul/infer", {"inputs": inside}),
            ("POST", "models/matmul/infer", {"inputs": outside, "outputs": wanted}),
        ):
            answer = client.request(method, f"/v2/{path}", json=body, headers=far)
            assert (answer.status_code, answer.json()["code"]) == (403, "shared_memory_off"), path
            assert "other hosts" in answer.json()["error"]
        (kept,) = server.get_system_shared_memory_status()
        assert kept["name"] == "operands"
        for body in ({"inputs": inside}, {"inputs": outside, "outputs": wanted}):
            assert client.post("/v2/models/matmul/infer", json=body).status_code == 200
    assert client.post("/v2/models/matmul/infer", json={"inputs": outside}, headers=far).status_code == 200


@pytest.mark.parametrize(
    ("client", "server", "local"),
    [
        (("127.0.0.1", 5), ("127.0.0.1", 80), True),
        (("127.8.9.10", 5), ("127.0.0.1", 80), True),
        (("::1", 5), ("::1", 80), True),
        (("::ffff:127.0.0.1", 5), ("::", 80), True),
        (("192.0.2.7", 5), ("127.0.0.1", 80), False),
        (("::ffff:192.0.2.7", 5), ("::", 80), False),
        (("2001:db8::1", 5), ("::1", 80), False),
        (("somebody", 5), ("127.0.0.1", 80), False),
        (None, ("/run/tilewise.sock", None), True),
        (None, ("127.0.0.1", 80), False),
        (None, None, False),
    ],
)
def test_who_is_on_this_host(
    client: tuple[str, int] | None, server: tuple[str, int | None] | None, local: bool
) -> None:
    assert is_local({"client": client, "server": server}) == local


@pytest.mark.slow
def test_the_unix_socket_is_on_this_host(tmp_path: Path) -> None:
    path = tmp_path / "tilewise.sock"
    with (
        started(tmp_path, devices="none", shared_memory="on", uds=str(path)),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client,
        named(4096) as key,
    ):
        told = {"key": key, "byte_size": 64}
        assert client.post("/v2/systemsharedmemory/region/mine/register", json=told).status_code == 200
        assert [each["name"] for each in client.get("/v2/systemsharedmemory/status").json()] == ["mine"]


def test_shared_memory_is_off_unless_the_owner_allows_it(bare: str) -> None:
    with calling(bare) as client, named(4096) as key:
        assert "system_shared_memory" not in client.get("/v2").json()["extensions"]
        answer = client.post("/v2/systemsharedmemory/region/mine/register", json={"key": key, "byte_size": 64})
        assert (answer.status_code, answer.json()["code"]) == (403, "shared_memory_off")
        assert "TILEWISE_SHARED_MEMORY" in answer.json()["error"]
        body = {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 64}
        answer = client.post("/v2/cudasharedmemory/region/mine/register", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "shared_memory_off")
        for kind in ("system", "cuda"):
            assert client.get(f"/v2/{kind}sharedmemory/status").json() == []
            assert client.post(f"/v2/{kind}sharedmemory/unregister").status_code == 200
        assert client.get("/v2/models/matmul/ready").status_code == 503
