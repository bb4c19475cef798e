"""What any release of tritonclient can be asked to do, by a Python that has one: triton_scenario.py HOST:PORT.

It imports nothing of this project; a release's own Python and NumPy may be older than the project's.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, shared_memory

A = np.random.default_rng(1).standard_normal((17, 33)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((33, 9)).astype(np.float32)


def main(address: str) -> None:
    """Call everything, check every answer, and say what was called."""
    client: Any = triton.InferenceServerClient(address, concurrency=2)
    tell(client)
    codings: list[dict[str, str]] = [{}]
    if "request_compression_algorithm" in inspect.signature(client.infer).parameters:
        names = ("gzip", "deflate")
        codings += [{f"{way}_compression_algorithm": name} for way in ("request", "response") for name in names]
    for binary in (True, False):
        for wanted in (None, [triton.InferRequestedOutput("C", binary_data=binary)]):
            for coding in codings:
                expect(client.infer("matmul", inputs(binary=binary), outputs=wanted, **coding).as_numpy("C"))
    for pending in [client.async_infer("matmul", inputs(), model_version="1") for _ in range(4)]:
        expect(pending.get_result().as_numpy("C"))
    share(client)
    refuse(client)
    client.close()
    print(f"all right with {len(codings)} codings")


def tell(client: Any) -> None:
    """The server and its model."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("matmul", "1")
    assert client.get_server_metadata()["name"] == "tilewise"
    assert client.get_model_metadata("matmul")["inputs"][0]["name"] == "A"
    assert client.get_model_config("matmul")["output"][0]["name"] == "C"
    assert client.get_model_repository_index()[0]["name"] == "matmul"
    assert client.get_inference_statistics("matmul")["model_stats"][0]["version"] == "1"


def inputs(binary: bool = True) -> list[Any]:
    """Both operands."""
    found = []
    for name, array in (("A", A), ("B", B)):
        one = triton.InferInput(name, list(array.shape), "FP32")
        one.set_data_from_numpy(array, binary_data=binary)
        found.append(one)
    return found


def expect(c: Any) -> None:
    """Hold C against NumPy's."""
    np.testing.assert_allclose(c, A @ B, rtol=1e-4, atol=1e-4)


def share(client: Any) -> None:
    """Operands and product in shared memory."""
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    sizes = {"old_a": A.nbytes, "old_b": B.nbytes, "old_c": 17 * 9 * 4}
    handles = {name: shared_memory.create_shared_memory_region(name, f"/mm-{name}", n) for name, n in sizes.items()}
    try:
        for name, size in sizes.items():
            client.register_system_shared_memory(name, f"/mm-{name}", size)
        assert len(client.get_system_shared_memory_status()) == len(sizes)
        a, b = inputs()
        for one, name, array in ((a, "old_a", A), (b, "old_b", B)):  # the first release fails at offsets of its own
            shared_memory.set_shared_memory_region(handles[name], [array])
            one.set_shared_memory(name, array.nbytes)
        wanted = triton.InferRequestedOutput("C")
        wanted.set_shared_memory("old_c", sizes["old_c"])
        client.infer("matmul", [a, b], outputs=[wanted])
        expect(shared_memory.get_contents_as_numpy(handles["old_c"], np.float32, [17, 9]))
        client.unregister_system_shared_memory("old_a")
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
    finally:
        for handle in handles.values():
            shared_memory.destroy_shared_memory_region(handle)


def refuse(client: Any) -> None:
    """An error's words arrive."""
    try:
        client.infer("other", inputs())
    except InferenceServerException as error:
        words = error.message()
    else:
        words = "an answer"
    assert "no model other" in words


if __name__ == "__main__":
    main(sys.argv[1])
