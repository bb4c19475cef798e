"""The client's product is numpy.matmul's: any shapes, strides, float types and `out`, in both ways of calling it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.client.shared_service import Served
from tilewise import AsyncClient, Client, ClientError, _shared_memory

Array = NDArray[Any]
Multiply = Callable[..., Any]
SEED = secrets.randbits(32)
# Which kernel multiplies is not the client's affair, and each is verified at its first use, which takes a while.
ONE_KERNEL = {"kernel": "naive"}
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


@pytest.fixture(params=["blocking", "asyncio", "shared memory"])
def multiply(request: pytest.FixtureRequest, service: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Multiply]:
    print(f"seed {SEED}")
    is_shared = request.param == "shared memory"
    if is_shared:
        monkeypatch.setattr(_shared_memory, "LEAST", 1)
    if request.param != "asyncio":
        with Client(service.url, shared_memory=is_shared) as client:
            yield lambda *args, **options: client.matmul(*args, **{**ONE_KERNEL, **options})
            assert bool(client.shared.idle or client.shared.dropped) == is_shared
        return
    with asyncio.Runner() as runner:
        patient = AsyncClient(service.unix, shared_memory=False)
        yield lambda *args, **options: runner.run(patient.matmul(*args, **{**ONE_KERNEL, **options}))
        runner.run(patient.close())


@dataclass(frozen=True)
class Case:
    """Two shapes that fit each other, how each operand lies, and their types."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    layouts: tuple[str, str]
    dtypes: tuple[str, str]
    seed: int


SIZE = st.one_of(st.integers(0, 3), st.integers(1, 40))
LAYOUTS = st.sampled_from(["C", "turned", "reversed", "every other", "cut out", "broadcast", "read-only"])
DTYPES = st.sampled_from(["f4", "f8", ">f4", ">f8"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    m, n, k = draw(SIZE), draw(SIZE), draw(SIZE)
    batch = draw(st.lists(st.integers(0, 3), max_size=3).filter(lambda sizes: np.prod(sizes, initial=1) <= 8))
    ends = [(k,) if draw(st.booleans()) and draw(st.booleans()) else (m, k)]
    ends.append((k,) if draw(st.booleans()) and draw(st.booleans()) else (k, n))
    shapes = []
    for end in ends:
        lead = batch[draw(st.integers(0, len(batch))) :] if len(end) > 1 else []
        shapes.append((*(1 if draw(st.booleans()) and draw(st.booleans()) else size for size in lead), *end))
    layouts, dtypes = (draw(LAYOUTS), draw(LAYOUTS)), (draw(DTYPES), draw(DTYPES))
    return Case((shapes[0], shapes[1]), layouts, dtypes, draw(st.integers(0, 2**32 - 1)))


def laid(shape: tuple[int, ...], layout: str, dtype: str, source: np.random.Generator) -> Array:
    """Random numbers of a shape, lying in memory as the layout says."""
    numbers = source.standard_normal(shape).astype(dtype)
    if layout == "turned" and len(shape) > 1:
        return np.ascontiguousarray(numbers.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "reversed":
        return numbers[..., ::-1]
    if layout == "every other":
        return np.repeat(numbers, 2, axis=0)[::2]
    if layout == "cut out":
        return np.pad(numbers, 1)[(slice(1, -1),) * numbers.ndim]
    if layout == "broadcast" and len(shape) > 1 and shape[0]:
        return np.broadcast_to(numbers[:1], shape)
    if layout == "read-only":
        numbers.flags.writeable = False
    return numbers


def operands(case: Case) -> tuple[Array, Array]:
    source = np.random.default_rng(case.seed)
    a, b = (laid(*each, source) for each in zip(case.shapes, case.layouts, case.dtypes, strict=True))
    return a, b


def close(c: Any, a: Array, b: Array, dtype: str) -> bool:
    """Whether every element is within what its inner product may lose by rounding."""
    wide, other = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 2) * EPSILON[dtype] * np.matmul(np.abs(wide), np.abs(other))
    return bool(np.all(np.abs(c - np.matmul(wide, other)) <= bound + 1e-300))


def many(examples: int) -> Callable[[Any], Any]:
    """So many random cases, from the printed seed."""
    return lambda test: hypothesis.seed(SEED)(
        settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )(test)
    )


@pytest.mark.rotating
@many(60)
@hypothesis.given(case=cases())
def test_a_product_has_numpys_values_shape_type_and_order(multiply: Multiply, case: Case) -> None:
    a, b = operands(case)
    expected = np.matmul(a, b)
    c = multiply(a, b)
    assert type(c) is type(expected)
    assert (c.shape, c.dtype) == (expected.shape, expected.dtype)
    assert c.flags.c_contiguous
    assert close(c, a, b, c.dtype.name), case


@pytest.mark.slow
@many(40)
@hypothesis.given(case=cases(), more=st.integers(-2, 2), dtype=st.sampled_from(["f4", "f8", ">f8", "c16"]), lie=LAYOUTS)
def test_out_takes_what_numpys_takes(multiply: Multiply, case: Case, more: int, dtype: str, lie: str) -> None:
    a, b = operands(case)
    expected = np.matmul(a, b)
    layout = "C" if lie in {"broadcast", "read-only"} else lie
    shape = ((2,) * more + expected.shape)[max(0, -more) :] or (1,)
    outs = [laid(shape, layout, dtype, np.random.default_rng(1)).reshape(shape) for _ in range(2)]
    try:
        np.matmul(a, b, out=outs[0])
    except (TypeError, ValueError) as refused:
        with pytest.raises(type(refused)):
            multiply(a, b, out=outs[1])
        return
    assert multiply(a, b, outs[1]) is outs[1]
    precise = min(expected.dtype.name, {"f4": "float32"}.get(dtype, "float64"))
    assert close(outs[1], a, b, precise)


@pytest.mark.rotating
@many(60)
@hypothesis.given(
    first=st.lists(st.integers(0, 3), max_size=4).map(tuple), second=st.lists(st.integers(0, 3), max_size=4).map(tuple)
)
def test_shapes_that_numpy_refuses_are_refused_and_no_others(
    multiply: Multiply, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    a, b = np.ones(first), np.ones(second)
    try:
        expected = np.matmul(a, b)
    except ValueError:
        with pytest.raises(ValueError, match=r"dimension|broadcast"):
            multiply(a, b)
    else:
        assert np.array_equal(multiply(a, b), expected)


@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (2, 1, 3, 5)])
def test_out_may_lack_the_first_sizes_of_1(multiply: Multiply, shape: tuple[int, ...]) -> None:
    a, b = np.arange(12.0).reshape(1, 1, 3, 4), np.arange(20.0).reshape(4, 5)
    out, expected = np.zeros(shape), np.zeros(shape)
    np.matmul(a, b, out=expected)
    assert multiply(a, b, out=out) is out
    assert np.array_equal(out, expected)


def test_out_may_be_one_of_the_operands(multiply: Multiply) -> None:
    a, b = np.eye(5) * 2, np.arange(25.0).reshape(5, 5)
    assert multiply(a, b, out=b) is b
    assert np.array_equal(b, 2 * np.arange(25.0).reshape(5, 5))
    assert np.array_equal(multiply(a, a, out=a), 4 * np.eye(5))


@pytest.mark.slow
def test_large_matrices_in_every_layout_come_whole(multiply: Multiply) -> None:
    source = np.random.default_rng(SEED)
    for layout in ("C", "turned", "reversed", "every other", "cut out"):
        a = laid((600, 700), layout, "f4", source)
        b = laid((700, 500), layout, "f4", source)
        assert close(multiply(a, b, kernel="vendor"), a, b, "float32"), layout
    stack = laid((3, 300, 400), "C", "f8", source)
    for a, b in [(stack, stack[0].T), (stack[0], stack.swapaxes(-1, -2)), (stack[:, None], stack.swapaxes(-1, -2))]:
        assert close(multiply(a, b, kernel="vendor"), a, b, "float64")
    column = stack[:, 0, :, None]
    assert close(multiply(stack[0], column, kernel="vendor"), stack[0], column, "float64")


class Interfaced:
    """Another library's array that NumPy can ask."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._array.astype(dtype or self._array.dtype, copy=bool(copy))


class Exporting:
    """Another library's array that is exported by DLPack, and, where it is on a device, only by a copy to the host."""

    def __init__(self, array: Array, *, is_on_device: bool) -> None:
        self._array, self._is_on_device = array, is_on_device

    def __dlpack__(self, **options: Any) -> Any:
        if self._is_on_device and options.pop("dl_device", None) != (1, 0):
            raise BufferError("the array is on a device")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0) if self._is_on_device else (1, 0)


def test_arrays_of_other_libraries_are_taken(multiply: Multiply) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    kinds = (Interfaced, lambda array: Exporting(array, is_on_device=False), lambda array: array.tolist())
    for kind in kinds:
        assert np.array_equal(multiply(kind(a), kind(b)), a @ b)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert np.array_equal(multiply(Exporting(a, is_on_device=True), b), a @ b)


class Lazy:
    """A tensor as PyTorch's: its elements are to be negated before they are used, which its export does not tell."""

    def __init__(self, stored: Array, *, is_negated: bool) -> None:
        self._stored, self._is_negated = stored, is_negated

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        raise TypeError("the elements are to be negated: call resolve_neg()")

    def __dlpack__(self, **options: Any) -> Any:
        return self._stored.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def resolve_neg(self) -> Lazy:
        """Negate them in memory."""
        return Lazy(-self._stored, is_negated=False) if self._is_negated else self

    def resolve_conj(self) -> Lazy:
        """Leave them, which are real."""
        return self


def test_tensors_whose_elements_are_to_be_negated_are(multiply: Multiply) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    assert np.array_equal(multiply(Lazy(a, is_negated=True), b), -a @ b)
    assert np.array_equal(multiply(a, Lazy(b, is_negated=False)), a @ b)


def test_types_are_promoted_as_numpy_does_and_others_refused(multiply: Multiply) -> None:
    halves, singles = np.ones((2, 3), np.float16), np.ones((3, 2), np.float32)
    assert multiply(halves, singles).dtype == np.float32
    for dtype in (np.int64, np.bool_, np.complex128, np.longdouble, object):
        with pytest.raises(TypeError, match="an operand is one of"):
            multiply(np.ones((2, 3), dtype), singles)
    with pytest.raises(TypeError, match="out is an array"):
        multiply(singles, singles.T, out=[[0.0]])


def test_a_forced_kernel_and_device_are_passed_on(multiply: Multiply) -> None:
    a = np.arange(12.0).reshape(3, 4)
    assert np.allclose(multiply(a, a.T, kernel="naive", device="opencl:0"), a @ a.T)
    assert np.allclose(multiply(a, a, trans_a=True), a.T @ a)
    with pytest.raises(ClientError, match="no kernel nobody"):
        multiply(a, a.T, kernel="nobody")
