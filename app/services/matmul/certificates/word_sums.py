"""WordSums: what a matrix's bytes in the slab have in common with their copy on a device, and with nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from app.dtypes import Array
from app.services.matmul.certificates.reading import StreamedRead
from app.tuning.verify.block_sums import block_sums
from kernels.freivalds import BLOCK_BYTES

_TOGETHER: Final = 256  # sums of a block, whose 16 MiB are read in one or two milliseconds: threads wake up seldom


class WordSums(StreamedRead[slice]):
    """The sums, modulo 2^64, of the 64-bit words of each BLOCK_BYTES of a matrix, read as it arrives.

    `sums` are whole once `wait` returns. One bit that differs changes the sum of its block for certain.
    """

    def __init__(self, matrix: Array) -> None:
        self._bytes = matrix.reshape(-1).view(np.uint8)
        self.sums = np.zeros(-(-matrix.nbytes // BLOCK_BYTES), np.uint64)
        super().__init__(matrix.nbytes, len(self.sums), self._in_order())

    def _in_order(self) -> Iterator[tuple[int, list[slice]]]:
        count, nbytes = len(self.sums), self._bytes.nbytes
        for start in range(0, count, _TOGETHER):
            stop = min(start + _TOGETHER, count)
            yield min(stop * BLOCK_BYTES, nbytes), [slice(start, stop)]

    def _add(self, block: slice) -> int:
        self.sums[block] = block_sums(self._bytes[block.start * BLOCK_BYTES : block.stop * BLOCK_BYTES])
        return len(self.sums[block])
