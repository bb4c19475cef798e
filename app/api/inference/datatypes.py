"""The protocol's element types, and the domain's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DTYPES: Final[Mapping[str, str]] = {"FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64"}
DATATYPES: Final[Mapping[str, str]] = {dtype: datatype for datatype, dtype in DTYPES.items()}
