"""Tensor maps: what the driver is given for one, what it would refuse, and what a launch is handed."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.errors import LaunchFailed
from kernels.launch import TensorMap

maps = pytest.importorskip("app.devices.cuda.tensor_maps")

TENSOR = TensorMap("b", "bfloat16", (100, 300, 7), (208, 62_400), (64, 128, 1), offset=256)


def plain(argument: Any) -> Any:
    """A ctypes argument as a number or a list of them."""
    return list(argument) if isinstance(argument, ctypes.Array) else argument.value


def test_the_driver_is_told_of_type_place_sizes_strides_box_and_swizzle() -> None:
    found = [plain(each) for each in maps.arguments(TENSOR, 4096)]
    sizes, strides, box, steps = [100, 300, 7], [208, 62_400], [64, 128, 1], [1, 1, 1]
    # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, ..., not interleaved, SWIZZLE_128B, L2_128B, zeros outside.
    assert found == [9, 3, 4096 + 256, sizes, strides, box, steps, 0, 3, 2, 0]


@pytest.mark.parametrize(
    ("element", "number", "itemsize"),
    [("float16", 6, 2), ("float32", 7, 4), ("float64", 8, 8), ("bfloat16", 9, 2), ("tfloat32", 11, 4)],
)
def test_elements_have_the_drivers_numbers(element: str, number: int, itemsize: int) -> None:
    tensor = replace(TENSOR, element=element, box=(16, 128, 1))
    assert maps.arguments(tensor, 0)[0].value == number
    assert tensor.itemsize == itemsize


@pytest.mark.parametrize(("swizzle", "number"), [(0, 0), (32, 1), (64, 2), (128, 3)])
def test_swizzles_have_the_drivers_numbers(swizzle: int, number: int) -> None:
    assert maps.arguments(replace(TENSOR, box=(16, 8, 1), swizzle=swizzle), 0)[8].value == number


def test_a_map_is_encoded_at_64_bytes_and_passed_as_one_element_of_128() -> None:
    places: list[int] = []

    def encoder(place: ctypes.c_void_p, *rest: Any) -> int:
        places.append(place.value or 1)
        assert len(rest) == 11
        ctypes.memmove(place, bytes(range(128)), 128)
        return 0

    found = maps.encode(TENSOR, 4096, encoder)
    assert places[0] % 64 == 0
    assert (found.size, found.dtype.itemsize, found.dtype.kind) == (1, 128, "V")
    assert found.tobytes() == bytes(range(128))
    assert isinstance(found, np.ndarray)


def test_refused_tensor_map_is_a_failed_launch_and_no_more() -> None:
    with pytest.raises(LaunchFailed, match="CUDA error 1: no tensor map") as caught:
        maps.encode(TENSOR, 8, lambda *_: 1)
    assert caught.value.facts["fatal"] is False
    with pytest.raises(LaunchFailed) as broken:
        maps.encode(TENSOR, 8, lambda *_: 700)
    assert broken.value.facts["fatal"] is True


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"operand": "d"}, "lies in a, b, c or the workspace"),
        ({"element": "int8"}, "has elements of a known type"),
        ({"sizes": (1,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, "has one to five dimensions"),
        ({"box": (64, 128)}, "has a box of as many"),
        ({"strides": (208,)}, "has a stride for each but the innermost"),
        ({"sizes": (100, 0, 7)}, "has sizes of 1 to 2^32"),
        ({"sizes": (100, 2**32 + 1, 7)}, "has sizes of 1 to 2^32"),
        ({"box": (64, 257, 1)}, "has boxes of 1 to 256 a side"),
        ({"box": (64, 0, 1)}, "has boxes of 1 to 256 a side"),
        ({"box": (60, 128, 1)}, "has boxes whose rows are whole 16 bytes"),
        ({"box": (128, 128, 1)}, "has boxes whose rows are no longer than the swizzle"),
        ({"swizzle": 96, "box": (16, 8, 1)}, "swizzles within 32, 64, 128 bytes or not at all"),
        ({"offset": 8}, "starts at a multiple of 16 bytes"),
        ({"strides": (200, 60_000)}, "has strides of whole 16 bytes below 2^40"),
        ({"strides": (208, 2**40 + 208)}, "has strides of whole 16 bytes below 2^40"),
        ({"strides": (208, 62_416)}, "has strides that divide the next"),
    ],
)
def test_what_the_driver_would_refuse_is_no_tensor_map(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=f"a tensor map {rule.replace('^', '.')}"):
        replace(TENSOR, **changes)


def test_a_wide_box_is_one_without_swizzle() -> None:
    assert replace(TENSOR, box=(128, 128, 1), swizzle=0).box == (128, 128, 1)


def test_a_tiny_map_has_one_element_and_the_same_boxes() -> None:
    tiny = TENSOR.tiny()
    assert (tiny.sizes, tiny.strides, tiny.offset) == ((1, 1, 1), (16, 16), 0)
    assert (tiny.box, tiny.swizzle, tiny.operand) == (TENSOR.box, 128, "b")
