"""SketchOnDevice: the sketch that a product's device makes, tied to the slab by sums of words.

What the device saw of A, B and C is what is in the slab, bit for bit, or a sum differs: then a bit has flipped on the
way, or in one of the two memories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from app.dtypes import Array
from app.errors import CertificateFailed
from app.services.matmul.certificates.freivalds import Sketch
from app.services.matmul.certificates.word_sums import WordSums
from app.tuning.verify.block_sums import block_sums
from app.worker.serving.sketch import DeviceSketch, SketchRequest
from kernels.device import Device
from kernels.freivalds import BLOCK_BYTES, WIDTH
from kernels.problem import Problem

# The platforms whose memory is faster than what the host's threads read; PoCL's devices are the host.
PLATFORMS: Final = frozenset({"cuda"})
LEAST: Final = 2**20  # bytes of a product below which the host has read it before a device has begun
_OPERANDS: Final = ("a", "b")
_SMALL: Final = 2.0**-4  # the most that the bytes of a sketch may be of the product's: the host reads these


def pays(problem: Problem, devices: Iterable[Device]) -> bool:
    """Whether a sketch is to be made on the device, which is one of these."""
    columns = problem.batch * (problem.m + problem.k + 2 * problem.n)
    is_small = columns * WIDTH * 8 <= _SMALL * problem.bytes
    return problem.bytes > LEAST and is_small and any(device.platform in PLATFORMS for device in devices)


class SketchOnDevice:
    """Asks a device for the sketch of one product, and sums up the words of A, B and C in the slab as they arrive."""

    def __init__(self, vectors: Array, a: Array, b: Array, c: Array) -> None:
        """Of `vectors` [VECTORS, m] of +1 and -1, and matrices as they are stored, or will be."""
        self.request = SketchRequest.of(vectors)
        self._vectors, self._c = vectors, c
        self._sums = {"a": WordSums(a), "b": WordSums(b), "c": WordSums(c)}
        self._arrived: set[str] = set()
        self._made: DeviceSketch | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the device took for it; 0 where it made none."""
        return 0.0 if self._made is None else self._made.seconds

    def take(self, made: DeviceSketch | None) -> None:
        """Take what the device that made C has found, if it has."""
        self._made = made

    def advance(self, name: str, nbytes: int) -> None:
        """Take note that the first `nbytes` of a, b or c are there; blocks nobody.

        Operands are read once both are there: while the device multiplies, and not beside their receiving.
        """
        if name not in _OPERANDS:
            self._sums[name].advance(nbytes)
        elif nbytes == self._sums[name].nbytes:
            self._arrived.add(name)
            if len(self._arrived) == len(_OPERANDS):
                for each in _OPERANDS:
                    self._sums[each].advance(self._sums[each].nbytes)

    def read(self, name: str) -> None:
        """Read all of a, b or c, which is there; raises Cancelled once it is stopped."""
        self._sums[name].wait()

    def stop(self) -> None:
        """Read nothing more: nobody reads the matrices once this returns."""
        for each in self._sums.values():
            each.stop()

    def expect_same(self, names: str = "abc") -> None:
        """Wait for the sums of matrices that are there, if the device made a sketch.

        Raises CertificateFailed where the device and the slab differ, and Cancelled once it is stopped.
        """
        if self._made is not None:
            for (name, here), there in zip(self._sums.items(), self._made.sums, strict=True):
                if name in names:
                    here.wait()
                    _expect_same(name, here.sums, there)

    def check_of_c(self) -> Callable[[int, int], None]:
        """What raises CertificateFailed unless C's bytes from one to another, by whole blocks, are the device's.

        It holds when this was stopped, as long as C is in the slab; the device has made a sketch.
        """
        there, c = self._made.sums[2] if self._made is not None else np.empty(0), self._c.reshape(-1).view(np.uint8)

        def check(start: int, end: int) -> None:
            first = start // BLOCK_BYTES
            here = block_sums(c[start:end])
            _expect_same("c", here, there[first : first + len(here)], first)

        return check

    def sketch(self) -> Sketch | None:
        """The sketch, which holds where both are the same; None if the device made none, or something is not finite."""
        return None if self._made is None or not self._made.is_finite else _sketch(self._vectors, self._made)


def _expect_same(name: str, here: Array, there: Array, first: int = 0) -> None:
    """Raise CertificateFailed where the sums of a matrix's words differ, from block `first` on."""
    blocks = np.flatnonzero(here != there)
    if blocks.size:
        start = (first + int(blocks[0])) * BLOCK_BYTES
        told = f"{name.upper()} differs between host and device from byte {start} to {start + BLOCK_BYTES}"
        more = f", and in {blocks.size - 1} more blocks" if blocks.size > 1 else ""
        raise CertificateFailed(f"the product failed its certificate: {told}{more}", residual=math.inf, limit=0.0)


def _sketch(vectors: Array, made: DeviceSketch) -> Sketch:
    """What a device found, as a host's sketch."""
    norms, unknown = (made.middle, made.whole, made.columns, made.results), np.zeros(made.columns.shape, bool)
    return Sketch(vectors, made.largest, *norms, made.weights, unknown, made.is_finite)
