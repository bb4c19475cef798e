"""Operands and results in memory of the GPU that the caller made, registered and named by tritonclient."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app.cli.spawn import started
from app.dtypes import Array
from tests.support.waiting import until

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("driver")]

M, N, K = 33, 65, 47
A_BYTES, B_BYTES, C_BYTES = 4 * M * K, 4 * K * N, 4 * M * N


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("cuda"), devices="cuda", shared_memory="on") as running:
        told: list[str] = []

        def is_ready() -> bool:
            answer = httpx.get(f"{running.url}/health/ready")
            told.append(answer.text)
            return not answer.json().get("pending", 1)

        until(is_ready, 90, each=0.1, meanwhile=lambda: told[-1])
        with triton.InferenceServerClient(running.url.removeprefix("http://")) as client:
            yield client


@pytest.fixture(scope="module")
def memory() -> Any:
    """What makes such memory, where the bindings of CUDA that it needs are installed: tritonclient asks for none."""
    try:
        return importlib.import_module("tritonclient.utils.cuda_shared_memory")
    except RuntimeError as error:
        pytest.skip(str(error))


@contextmanager
def region(server: Any, memory: Any, name: str, nbytes: int) -> Iterator[Any]:
    handle = memory.create_shared_memory_region(name, nbytes, 0)
    try:
        server.register_cuda_shared_memory(name, memory.get_raw_handle(handle), 0, nbytes)
        yield handle
    finally:
        server.unregister_cuda_shared_memory(name)
        memory.destroy_shared_memory_region(handle)


def inputs(b_at: int) -> list[Any]:
    a, b = triton.InferInput("A", [M, K], "FP32"), triton.InferInput("B", [K, N], "FP32")
    return [a.set_shared_memory("operands", A_BYTES), b.set_shared_memory("operands", B_BYTES, b_at)]


def output(offset: int, nbytes: int = C_BYTES) -> Any:
    wanted = triton.InferRequestedOutput("C")
    wanted.set_shared_memory("product", nbytes, offset)
    return wanted


def integers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-8, 9, shape).astype(np.float32)


def test_every_product_is_there_when_its_answer_is(server: Any, memory: Any) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    with (
        region(server, memory, "operands", A_BYTES + B_BYTES) as operands,
        region(server, memory, "product", 256 + C_BYTES) as product,
    ):
        for _ in range(100):
            a, b = integers(rng, M, K), integers(rng, K, N)
            memory.set_shared_memory_region(operands, [a, b])
            told = server.infer("matmul", inputs(A_BYTES), outputs=[output(256)]).get_output("C")
            assert (told["shape"], "data" in told) == ([M, N], False)
            found = memory.get_contents_as_numpy(product, np.float32, [64 + M * N])[64:]
            assert np.array_equal(found.reshape(M, N), a @ b)
        assert np.array_equal(server.infer("matmul", inputs(A_BYTES)).as_numpy("C"), a @ b)


def test_regions_are_told_and_their_ends_are_kept(server: Any, memory: Any) -> None:
    with region(server, memory, "operands", A_BYTES + B_BYTES), region(server, memory, "product", C_BYTES):
        told = server.get_cuda_shared_memory_status()
        assert [(each["name"], each["byte_size"]) for each in told] == [
            ("operands", A_BYTES + B_BYTES),
            ("product", C_BYTES),
        ]
        with pytest.raises(InferenceServerException):
            server.infer("matmul", inputs(A_BYTES + 4))
        with pytest.raises(InferenceServerException):
            server.infer("matmul", inputs(A_BYTES), outputs=[output(4)])
    assert server.get_cuda_shared_memory_status() == []
