"""Freivalds' check on the device: no kernel of the catalogue, since it makes no product but looks at one."""

from kernels.freivalds.launches import (
    BLOCK_BYTES,
    CHUNK,
    SAMPLE,
    VECTORS,
    WIDTH,
    StoredMatrix,
    project,
    row_peaks,
    word_sums,
)

__all__ = ["BLOCK_BYTES", "CHUNK", "SAMPLE", "VECTORS", "WIDTH", "StoredMatrix", "project", "row_peaks", "word_sums"]
