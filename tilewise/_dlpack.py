"""Arrays of other libraries by DLPack, those of bfloat16 too, of which NumPy's own import knows nothing."""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewise._dtypes import numpy_dtype

# dlpack.h: DLDataTypeCode; where a DLTensor has its type's code and bits, after a pointer, a device of two integers and
# the number of dimensions; and what stands before the tensor in each kind of capsule.
_UINT, _BFLOAT, _BITS = 1, 4, 16
_CODE: Final = 20
_TENSORS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
_NAME: Final = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_POINTER: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_FAILING: Final = (BufferError, RuntimeError, TypeError, ValueError, AttributeError)


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of another library, by DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        """Export it."""
        ...

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Tell where it lies."""
        ...


def type_address(capsule: object) -> int:
    """Where the tensor of a capsule has its type: a byte for the code, and one for the bits."""
    name = _NAME(capsule)
    return int(_POINTER(capsule, name)) + _TENSORS[name] + _CODE


class _Renamed:
    """An array of bfloat16, exported as the integers of 16 bits that lie in its memory; any other as it is."""

    def __init__(self, value: SupportsDLPack) -> None:
        self._value = value
        self.is_bfloat = False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._value.__dlpack__(**options)
        address = type_address(capsule)
        code, bits = (ctypes.c_uint8 * 2).from_address(address)
        self.is_bfloat = (code, bits) == (_BFLOAT, _BITS)
        if self.is_bfloat:
            ctypes.c_uint8.from_address(address).value = _UINT
        return capsule

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._value.__dlpack_device__()


def imported(value: SupportsDLPack) -> NDArray[Any] | None:
    """The array in its own memory, or copied to the host where it is a device's; None if it cannot be had so."""
    from_dlpack: Any = np.from_dlpack
    for options in ({}, {"device": "cpu"}):  # the second has a device copy it to the host; NumPy 2.1
        renamed = _Renamed(value)
        try:
            array = cast("NDArray[Any]", from_dlpack(renamed, **options))
        except _FAILING:
            continue
        return array.view(numpy_dtype("bfloat16")) if renamed.is_bfloat else array
    return None
