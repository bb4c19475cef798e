"""float16 and bfloat16 through the client: sent, kept, fetched and taken from other libraries as they are."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from app.cli.matrices import operand
from app.dtypes import numpy_dtype
from tests.support.client.shared_service import Served
from tilewise import AsyncClient, Client, _shared_memory
from tilewise._dlpack import type_address
from tilewise._operands import arrayed

Array = NDArray[Any]
Multiply = Callable[..., Array]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EVERY = pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
# Which kernel multiplies is not the client's affair, and each is verified at its first use, which takes a while.
KERNEL = "tiled"


@pytest.fixture(params=["blocking", "asyncio", "shared memory"])
def multiply(request: pytest.FixtureRequest, service: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Multiply]:
    monkeypatch.setattr(_shared_memory, "LEAST", 1)
    if request.param == "asyncio":
        with asyncio.Runner() as runner:
            patient = AsyncClient(service.unix, shared_memory=False)
            yield lambda *args, **options: runner.run(patient.matmul(*args, kernel=KERNEL, **options))
            runner.run(patient.close())
        return
    with Client(service.url, shared_memory=request.param == "shared memory") as client:
        yield lambda *args, **options: client.matmul(*args, kernel=KERNEL, **options)


def integers(dtype: np.dtype[Any], *shape: int) -> Array:
    return (np.arange(np.prod(shape)).reshape(shape) % 7 - 3).astype(dtype)


def exact(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)))


@pytest.mark.slow
@EVERY
def test_products_of_16_bits_are_of_16_bits_and_lie_as_numpys(multiply: Multiply, dtype: np.dtype[Any]) -> None:
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b)), (a[::2], b[:, 1:])):
        c = multiply(left, right)
        assert c.dtype == dtype
        assert np.array_equal(c.astype(np.float64), exact(left, right))
    stack = integers(dtype, 3, 6, 5)
    assert np.array_equal(multiply(stack, b).astype(np.float64), exact(stack, b))
    assert np.array_equal(multiply(a[0], b).astype(np.float64), exact(a[0], b))
    room = np.zeros((6, 4), dtype)
    assert multiply(a, b, out=room) is room
    assert np.array_equal(room.astype(np.float64), exact(a, b))
    empty = multiply(integers(dtype, 6, 0), integers(dtype, 0, 4))
    assert empty.dtype == dtype
    assert not empty.any()


@pytest.mark.slow
def test_16_bits_beside_others_are_promoted_or_refused_as_numpy_does(multiply: Multiply) -> None:
    a = integers(BFLOAT16, 6, 5)
    assert multiply(a, integers(np.dtype(np.float32), 5, 4)).dtype == np.float32
    with pytest.raises(TypeError, match="promot"):
        multiply(a, integers(np.dtype(np.float16), 5, 4))


@pytest.mark.slow
@EVERY
def test_matrices_of_16_bits_are_kept_and_fetched(service: Served, dtype: np.dtype[Any]) -> None:
    a, b = integers(dtype, 6, 5), integers(dtype, 5, 4)
    with Client(service.unix) as client:
        kept = client.put("halves", b)
        assert (kept.dtype, kept.nbytes) == (dtype.name, 40)
        assert (client.get(kept).dtype, client.get(kept).tobytes()) == (dtype, b.tobytes())
        assert client.get("halves", out=np.zeros((5, 4), dtype)).tobytes() == b.tobytes()
        assert np.array_equal(client.matmul(a, kept, kernel=KERNEL).astype(np.float64), exact(a, b))
        made = client.keep("made", a, kept, kernel=KERNEL)
        assert np.array_equal(client.get(made).astype(np.float64), exact(a, b))
        later = client.submit(a, b, kernel=KERNEL).result()
        assert later.dtype == dtype
        assert np.array_equal(later.astype(np.float64), exact(a, b))
        with pytest.raises(TypeError, match=f"halves is {dtype}"):
            client.matmul(a.astype(np.float64), kept)


class Exporting:
    """Another library's array of bfloat16: DLPack knows the type, NumPy's import does not."""

    def __init__(self, array: Array, *, versioned: bool) -> None:
        self._array, self._versioned = array, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if not self._versioned:
            if options:
                raise TypeError("an older __dlpack__ has no options")
            options = {}
        capsule = self._array.view(np.uint16).__dlpack__(**options)
        assert ('"dltensor_versioned"' in repr(capsule)) == self._versioned
        ctypes.c_uint8.from_address(type_address(capsule)).value = 4
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("versioned", [False, True])
def test_bfloat16_of_other_libraries_is_taken_where_it_lies(versioned: bool) -> None:
    if versioned and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this NumPy knows nothing of versions of DLPack")
    numbers = integers(BFLOAT16, 4, 6)
    for array in (numbers, numbers.T, numbers[:, ::2]):
        other = Exporting(array, versioned=versioned)
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(other)
        taken = arrayed(other)
        assert taken.dtype == BFLOAT16
        assert np.shares_memory(taken, numbers)
        assert np.array_equal(taken, array)


def test_operands_in_files_may_be_of_16_bits() -> None:
    for dtype in ("float16", "bfloat16"):
        taken = operand(integers(numpy_dtype(dtype), 3, 4).T)
        assert (taken.dtype, taken.flags.c_contiguous) == (numpy_dtype(dtype), True)
    with pytest.raises(ValueError, match="got float128"):
        operand(np.ones((2, 2), np.longdouble))
