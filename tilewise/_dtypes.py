"""The dtypes of operands: NumPy's own, and bfloat16 if ml_dtypes is installed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np

DTYPES: Final = ("float32", "float64", "float16", "bfloat16")


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of this name, in native byte order.

    Raises KeyError if the service has no such dtype, and ImportError for bfloat16 without ml_dtypes.
    """
    if name not in DTYPES:
        raise KeyError(name)
    if name != "bfloat16":
        return np.dtype(name)
    try:
        bfloat16: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ImportError("bfloat16 needs ml_dtypes: pip install 'tilewise-client[bfloat16]'") from error
    return bfloat16
