"""Copies and launches on streams of their own, which overlap; and CUDA's errors as the project's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import cupy
from cupy.cuda import driver, runtime

from app.devices.backend import Buffer, Operands, Program
from app.dtypes import Array
from app.errors import LaunchFailed
from kernels.launch import Launch

_TO_DEVICE, _TO_HOST = range(2)
_LEGACY: Final = 0  # the default stream
_KINDS: Final = (runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost)
# CUDA's errors that leave the context whole (the runtime's and the driver's numbers agree): invalid value, out of
# memory, invalid configuration, invalid function, invalid image, no binary for the GPU, invalid or unsupported PTX,
# symbol not found, too many resources, and all that a capture for a graph can be refused for (900 to 908). After any
# other the process cannot use the device again.
_MENDABLE: Final = {1, 2, 9, 98, 200, 209, 218, 222, 500, 701, *range(900, 909)}


class OverlappedStreams(ABC):
    """AsyncExecution by four streams: copies to the device, copies from it, and launches on two in turn.

    A launch that is queued on another stream than the one before takes the multiprocessors that its last wave leaves
    idle. Source: CUDA C++ Programming Guide, "Streams".
    """

    def __init__(self) -> None:
        self._copying: list[Any] = []
        self._launching: list[Any] = []
        self._started = 0
        self._borrower: Any = None  # the mark of the launch that had the workspace last

    def write_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Any:
        """Copy rows of bytes into a buffer."""
        to, at = int(buffer.handle.ptr) + buffer.offset, rows.ctypes.data
        return self._copy_rows(_TO_DEVICE, to, rows.shape[1], at, rows.strides[0], rows.shape, wait)

    def read_rows(self, buffer: Buffer, rows: Array, *, wait: bool) -> Any:
        """Copy a buffer's bytes into rows: the device has an engine for each direction."""
        to, at = rows.ctypes.data, int(buffer.handle.ptr) + buffer.offset
        return self._copy_rows(_TO_HOST, to, rows.strides[0], at, rows.shape[1], rows.shape, wait)

    def _copy_rows(
        self, way: int, to: int, to_pitch: int, at: int, at_pitch: int, shape: tuple[int, ...], wait: bool
    ) -> Any:
        with failing():
            stream = self._streams(self._copying)[way]
            runtime.memcpy2DAsync(to, to_pitch, at, at_pitch, shape[1], shape[0], _KINDS[way], stream.ptr)
            if wait:
                stream.synchronize()
            return stream.record(_event())

    def start(self, program: Program, launch: Launch, operands: Operands, after: Sequence[Any]) -> Any:
        """Queue a launch after some marks; one with a workspace, which these share, once the one before is over."""
        with failing():
            if launch.workspace_bytes and self._borrower is not None:
                self._borrower.synchronize()
            go = self._queued(program, launch, operands)
            if launch.workspace_bytes:
                runtime.streamSynchronize(_LEGACY)  # on which a fresh workspace is zeroed
            self._started += 1
            stream = self._streams(self._launching)[self._started % 2]
            for mark in after:
                stream.wait_event(mark)
            with stream:
                go()
            mark = stream.record(_event())
            if launch.workspace_bytes:
                self._borrower = mark
            return mark

    def finish(self, mark: Any) -> None:
        """Wait for a launch."""
        with failing():
            mark.synchronize()

    def settle(self) -> None:
        """Wait for the device."""
        with failing():
            runtime.deviceSynchronize()

    def _streams(self, streams: list[Any]) -> list[Any]:
        """Two streams, made when first asked for."""
        if not streams:
            streams.extend(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        return streams

    @abstractmethod
    def _queued(self, program: Program, launch: Launch, operands: Operands) -> Callable[[], None]:
        """A launch that is ready to be queued on the current stream."""


def _event() -> Any:
    return cupy.cuda.Event(disable_timing=True)


@contextmanager
def failing() -> Iterator[None]:
    """Translate CUDA's errors into DeviceErrors, `fatal` if the context is corrupted and the process must end."""
    try:
        yield
    except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
        raise LaunchFailed(str(error), fatal=is_fatal(error)) from error
    except MemoryError as error:
        raise LaunchFailed(f"out of memory: {error}", fatal=False) from error


def is_fatal(error: Exception) -> bool:
    """Whether an error of CUDA's leaves the context unusable."""
    return getattr(error, "status", None) not in _MENDABLE
