"""Sums of words: what two copies of a matrix have in common if they are the same, bit for bit."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.dtypes import Array
from kernels.freivalds import BLOCK_BYTES

_WORD: Final = 8


def block_sums(read: Array) -> Array:
    """The sums, modulo 2^64, of the 64-bit words of each BLOCK_BYTES of some bytes, with zeros past their end."""
    whole = read.nbytes // BLOCK_BYTES
    even = read[: whole * BLOCK_BYTES].view(np.uint64).reshape(whole, BLOCK_BYTES // _WORD)
    rest = read[whole * BLOCK_BYTES :]
    padded = np.zeros(-(-rest.nbytes // _WORD) * _WORD, np.uint8)
    padded[: rest.nbytes] = rest
    ends = [padded.view(np.uint64).sum(keepdims=True)] if rest.nbytes else []
    return np.concatenate([even.sum(1), *ends])
