"""What exports use of CuPy, over the host's memory: each launch is a line of RECORDED_LAUNCHES, and multiplies floats.

CuPy itself cannot launch here: CUDA's runtime, which is linked into it, opens no driver without a GPU. Every name below
is one of CuPy's, to which a test holds it.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

uint8, uint32 = np.uint8, np.uint32
ALIGNED = 16
LIMIT = 48 * 1024


class ndarray(np.ndarray[Any, Any]):  # noqa: N801 - CuPy's name
    """An array whose memory has an address."""

    @property
    def data(self) -> Any:
        """Its memory."""
        return SimpleNamespace(ptr=self.ctypes.data, memset_async=self._set)

    def get(self) -> NDArray[Any]:
        """The array in the host's memory."""
        return np.array(self)

    def _set(self, value: int, nbytes: int, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.view(np.uint8).reshape(-1)[:nbytes] = value


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> ndarray:
    """An array of ones' bits that begins at a multiple of 16 bytes, as CuPy's do."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.full(nbytes + ALIGNED, 0xFF, np.uint8)
    at = -room.ctypes.data % ALIGNED
    return room[at : at + nbytes].view(dtype).reshape(shape).view(ndarray)


def asarray(values: NDArray[Any]) -> ndarray:
    """A copy of NumPy's array."""
    made = empty(values.shape, values.dtype)
    made[...] = values
    return made


class RawModule:
    """A cubin's file, or the PTX of what keeps a GPU busy."""

    def __init__(self, *, path: str) -> None:
        assert Path(path).read_bytes()[:4] == b"\x7fELF" or Path(path).name == "read_sweep.ptx"

    def get_function(self, name: str) -> RawKernel:
        """A function of it."""
        return RawKernel(name)


class RawKernel:
    """A function, which records its launches."""

    def __init__(self, name: str) -> None:
        self.name, self.max_dynamic_shared_size_bytes = name, LIMIT

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Record a launch, and multiply where that is asked for."""
        if self.name == "read_sweep":
            return
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "a GPU refuses it"
        said: list[Any] = ["map" if each.nbytes == 128 else int(each) for each in args]
        with Path(os.environ["RECORDED_LAUNCHES"]).open("a") as log:
            log.write(json.dumps([self.name, *grid, *block, shared_mem, *said]) + "\n")
        if os.environ.get("RECORDED_MULTIPLIES"):
            a, b, c, m, n, k = said
            _floats(c, m, n)[...] = _floats(a, m, k) @ _floats(b, k, n)


def _floats(address: int, rows: int, columns: int) -> NDArray[Any]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (rows, columns))


class Stream:
    """A stream, on which all is done at once."""

    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_capture(self) -> None:
        """Begin a graph."""

    def end_capture(self) -> Any:
        """End it."""
        return SimpleNamespace(launch=lambda _: None)


class Event:
    """An event, a millisecond after the one before."""

    def record(self, stream: Stream) -> None:
        """Place it."""
        assert isinstance(stream, Stream)

    def synchronize(self) -> None:
        """Wait for it."""


cuda = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    get_current_stream=lambda: Stream(non_blocking=True),
    get_elapsed_time=lambda *_: 1.0,
    runtime=SimpleNamespace(deviceSynchronize=lambda: None),
)
