"""The Open Inference Protocol as NVIDIA's tritonclient speaks it, unmodified, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from app.cli.spawn import Started
from app.dtypes import Array
from tests.support.api.slab_usage import all_given_back
from tests.support.pairwise import crossed

CODINGS: Final = (None, "gzip", "deflate")
BOUND: Final = {"float32": 1e-4, "float64": 1e-11}


@pytest.fixture(scope="module")
def server(live: Started) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(live.url.removeprefix("http://"), concurrency=4) as client:
        yield client


def matrices(m: int, n: int, k: int, dtype: str = "float32", batch: int | None = None) -> tuple[Array, Array]:
    rng = np.random.default_rng(m * n + k)
    stack = () if batch is None else (batch,)
    return rng.standard_normal((*stack, m, k)).astype(dtype), rng.standard_normal((*stack, k, n)).astype(dtype)


def inputs(a: Array, b: Array, *, binary: bool = True) -> list[Any]:
    found = []
    for name, array in (("A", a), ("B", b)):
        one = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        found.append(one.set_data_from_numpy(array, binary_data=binary))
    return found


def expect(c: Array | None, a: Array, b: Array) -> None:
    assert c is not None
    assert c.dtype == a.dtype
    bound = BOUND[a.dtype.name]
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=bound, atol=bound)


@crossed(response=CODINGS, request_=CODINGS, binary=[True, False], output=["unsaid", "binary", "json"])
def test_every_way_of_sending_and_of_answering_gives_the_product(
    server: Any, binary: bool, output: str, request_: str | None, response: str | None
) -> None:
    a, b = matrices(17, 9, 33)
    outputs = None if output == "unsaid" else [triton.InferRequestedOutput("C", binary_data=output == "binary")]
    result = server.infer(
        "matmul",
        inputs(a, b, binary=binary),
        outputs=outputs,
        request_compression_algorithm=request_,
        response_compression_algorithm=response,
    )
    expect(result.as_numpy("C"), a, b)
    told = result.get_output("C")
    assert ("data" in told) == (output == "json")
    assert ("parameters" in told) == (output != "json")


@pytest.mark.drawn(2)
@crossed(dtype=["float32", "float64"], batch=[None, 1, 3], binary=[True, False])
def test_every_type_and_batch_is_multiplied(server: Any, dtype: str, batch: int | None, binary: bool) -> None:
    a, b = matrices(5, 7, 11, dtype, batch)
    result = server.infer("matmul", inputs(a, b, binary=binary), model_version="1", request_id="forty-two")
    expect(result.as_numpy("C"), a, b)
    told = result.get_response()
    assert (told["id"], told["model_name"], told["model_version"]) == ("forty-two", "matmul", "1")
    assert told["parameters"]["device"] == "opencl:0"


def test_inputs_may_come_in_any_order_and_each_in_its_own_way(server: Any) -> None:
    a, b = matrices(17, 9, 33)
    (listed, _), (_, binary) = inputs(a, b, binary=False), inputs(a, b)
    expect(server.infer("matmul", [binary, listed]).as_numpy("C"), a, b)


def test_parameters_choose_kernel_and_transpositions(server: Any) -> None:
    a, b = matrices(6, 4, 8)
    stored = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    chosen = {"kernel": "naive", "trans_a": True, "trans_b": True, "precision": "strict", "device": "opencl:0"}
    result = server.infer("matmul", inputs(*stored), parameters=chosen, priority=1, timeout=500_000)
    expect(result.as_numpy("C"), a, b)
    assert result.get_response()["parameters"]["kernel"] == "naive"
    assert result.get_response()["parameters"]["instructions"] == "fma"


def test_numbers_that_are_not_finite_travel_as_json_and_as_bytes(server: Any) -> None:
    a = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [-1, 1]], np.float32)
    b = np.array([[2, 0], [1, 0]], np.float32)
    wanted = np.array([[np.nan, np.nan], [np.inf, np.nan], [-np.inf, np.nan], [-1, 0]], np.float32)
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput("C", binary_data=binary)]
        result = server.infer("matmul", inputs(a, b, binary=binary), outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("C"), wanted)


def test_the_pages_example_is_right(live: Started) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "triton.md").read_text(encoding="utf-8")
    example = text.partition("<!-- tested -->\n```python\n")[2].partition("```")[0]
    assert '"127.0.0.1:8000"' in example
    names: dict[str, Any] = {}
    exec(example.replace("127.0.0.1:8000", live.url.removeprefix("http://")), names)  # noqa: S102 - it is our own
    np.testing.assert_array_equal(names["c"], np.full((256, 128), 512, np.float32))
    names["client"].close()


def test_async_infer_answers_every_request_with_its_own_product(server: Any) -> None:
    a, b = matrices(17, 9, 33)
    pairs = [(a + i, b) for i in range(16)]
    pending = [server.async_infer("matmul", inputs(*pair), request_id=str(i)) for i, pair in enumerate(pairs)]
    for i, (request, (a, b)) in enumerate(zip(pending, pairs, strict=True)):
        result = request.get_result()
        assert result.get_response()["id"] == str(i)
        expect(result.as_numpy("C"), a, b)


def test_the_asyncio_client_works(live: Started) -> None:
    async def ask() -> None:
        async with triton_aio.InferenceServerClient(live.url.removeprefix("http://")) as client:
            assert await client.is_server_live()
            assert await client.is_model_ready("matmul")
            assert (await client.get_model_metadata("matmul"))["platform"] == "tilewise"
            a, b = matrices(17, 9, 33)
            pairs = [(a + i, b) for i in range(8)]
            for coding in CODINGS:
                asked = (
                    client.infer(
                        "matmul",
                        inputs(*pair),
                        request_compression_algorithm=coding,
                        response_compression_algorithm=coding,
                    )
                    for pair in pairs
                )
                for result, pair in zip(await asyncio.gather(*asked), pairs, strict=True):
                    expect(result.as_numpy("C"), *pair)

    asyncio.run(ask())


def test_the_server_and_its_model_are_described(server: Any) -> None:
    assert server.is_server_live()
    assert server.is_server_ready()
    assert server.is_model_ready("matmul")
    assert server.is_model_ready("matmul", "1")
    assert not server.is_model_ready("matmul", "2")
    assert not server.is_model_ready("other")
    told = server.get_server_metadata()
    assert told["name"] == "tilewise"
    assert {"binary_tensor_data", "statistics", "system_shared_memory"} <= set(told["extensions"])
    assert "cuda_shared_memory" not in told["extensions"]
    model = server.get_model_metadata("matmul")
    assert model == server.get_model_metadata("matmul", "1")
    assert (model["name"], model["versions"]) == ("matmul", ["1"])
    assert [each["name"] for each in (*model["inputs"], *model["outputs"])] == ["A", "B", "C"]
    config = server.get_model_config("matmul", "1")
    assert config["max_batch_size"] == 0
    assert config["input"][0] == {"name": "A", "data_type": "TYPE_FP32", "dims": [-1, -1]}


def test_the_repository_holds_the_one_model(server: Any) -> None:
    index = server.get_model_repository_index()
    assert index == [{"name": "matmul", "version": "1", "state": "READY", "reason": ""}]
    server.load_model("matmul")
    refusals: tuple[Callable[[], Any], ...] = (
        lambda: server.load_model("other"),
        lambda: server.load_model("matmul", config="{}"),
        lambda: server.unload_model("matmul"),
    )
    for refused in refusals:
        with pytest.raises(InferenceServerException, match="matmul"):
            refused()


def test_statistics_grow_with_every_phase_of_every_inference(server: Any) -> None:
    def told() -> dict[str, Any]:
        (model,) = server.get_inference_statistics("matmul", "1")["model_stats"]
        assert server.get_inference_statistics()["model_stats"][0]["name"] == model["name"] == "matmul"
        assert int(model["version"]) == 1
        return dict(model)

    before = told()
    a, b = matrices(17, 9, 33)
    for _ in range(3):
        server.infer("matmul", inputs(a, b))
    with pytest.raises(InferenceServerException):
        server.infer("matmul", inputs(a, b[1:]))
    after = told()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["last_inference"] >= before["last_inference"]

    def grown(name: str) -> tuple[int, int]:
        old, new = before["inference_stats"][name], after["inference_stats"][name]
        return new["count"] - old["count"], new["ns"] - old["ns"]

    total = grown("success")
    phases = [grown(name) for name in ("queue", "compute_input", "compute_infer", "compute_output")]
    assert [count for count, _ in phases] == [3] * 4
    assert all(ns > 0 for _, ns in phases)
    assert sum(ns for _, ns in phases) <= total[1]
    assert grown("fail")[0] == 1
    assert set(after["inference_stats"]) >= {"cache_hit", "cache_miss"}
    assert after["batch_stats"][0]["batch_size"] == 1


A, B = matrices(2, 4, 3)
WRONG: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "model": ("no model other", lambda server: server.infer("other", inputs(A, B))),
    "version": ("no version 9", lambda server: server.infer("matmul", inputs(A, B), model_version="9")),
    "statistics": ("no model other", lambda server: server.get_inference_statistics("other")),
    "one input": ("inputs", lambda server: server.infer("matmul", inputs(A, B)[:1])),
    "one input twice": ("A twice", lambda server: server.infer("matmul", [inputs(A, B)[0]] * 2)),
    "inner sizes": ("inner dimensions disagree", lambda server: server.infer("matmul", inputs(A, B[:2]))),
    "types": ("float64", lambda server: server.infer("matmul", inputs(A, B.astype(np.float64)))),
    "half in tf32": (
        "no kernel computes float16",
        lambda server: server.infer("matmul", inputs(*half()), parameters={"precision": "tf32"}),
    ),
    "half in JSON": ("convert=true", lambda server: server.infer("matmul", inputs(*half(), binary=False))),
    "integers": ("INT32", lambda server: server.infer("matmul", inputs(A.astype(np.int32), B.astype(np.int32)))),
    "kernel": ("no kernel magic", lambda server: server.infer("matmul", inputs(A, B), parameters={"kernel": "magic"})),
    "parameter": (
        "trans_a must be true or false",
        lambda server: server.infer("matmul", inputs(A, B), parameters={"trans_a": 1}),
    ),
    "output": (
        "must be C",
        lambda server: server.infer("matmul", inputs(A, B), outputs=[triton.InferRequestedOutput("D")]),
    ),
    "classes": ("classification", lambda server: server.infer("matmul", inputs(A, B), outputs=[classes()])),
}


def half() -> tuple[Array, Array]:
    return A.astype(np.float16), B.astype(np.float16)


def classes() -> Any:
    return triton.InferRequestedOutput("C", class_count=3)


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_inferred_is_refused_in_words_the_client_reads(server: Any, words: str) -> None:
    expected, ask = WRONG[words]
    with pytest.raises(InferenceServerException, match=expected) as refused:
        ask(server)
    assert refused.value.status() in {"400", "404", "422"}


def test_slab_bytes_are_given_back_whatever_becomes_of_a_request(server: Any, client: httpx.Client) -> None:
    for _, ask in WRONG.values():
        with pytest.raises(InferenceServerException):
            ask(server)
    server.infer("matmul", inputs(A, B), response_compression_algorithm="gzip")
    assert all_given_back(client)
