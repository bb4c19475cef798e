"""The four dtypes as NumPy knows them; bfloat16, which NumPy has not, is ml_dtypes'."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kernels.problem import ITEMSIZE

Array = NDArray[Any]

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in ITEMSIZE
}
_HALF: Final = 2  # bytes of a 16-bit element


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a problem's, in this machine's byte order; raises KeyError where there is no such dtype."""
    return _DTYPES[name]


def rounded(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Doubles as elements of one of the four dtypes, each rounded once, to nearest even; what is beyond is infinity.

    ml_dtypes makes bfloat16 of a double by way of float32, which rounds twice: here that step rounds to odd, which no
    rounding to eight bits can tell from the double itself (Boldo and Melquiond, IEEE Trans. Computers 57-4, 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != _DTYPES["bfloat16"]:
            return numbers.astype(dtype)
        singles = numbers.astype(np.float32)
        bits = singles.view(np.uint32)
        away, inexact = np.abs(singles) > np.abs(numbers), singles != numbers
        bits -= away.astype(np.uint32)
        bits |= inexact.astype(np.uint32)
        return singles.astype(dtype)


def widened(elements: NDArray[Any]) -> NDArray[Any]:
    """Elements as writers of text take them: those of 16 bits as doubles, whose text is then exactly what they are."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return elements.astype(np.float64) if elements.itemsize == _HALF else elements
