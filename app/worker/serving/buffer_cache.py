"""LRU cache of resident matrices in device memory, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.devices.backend import Buffer


class DeviceBufferCache:
    """Device copies by key, the least recently used first; a key names the same bytes for as long as it is known."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}

    @property
    def keys(self) -> tuple[int, ...]:
        """The keys that there are copies of."""
        return tuple(self._buffers)

    def copy(self, key: int | None) -> Buffer | None:
        """The buffer of a key, now the most recently used; None if there is none."""
        buffer = None if key is None else self._buffers.pop(key, None)
        if key is not None and buffer is not None:
            self._buffers[key] = buffer
        return buffer

    def make_room(self, nbytes: int, budget: int, needed: Collection[int | None]) -> bool:
        """Evict buffers other than the needed ones until `nbytes` more fit the budget; whether they do."""
        bound = sum(buffer.nbytes for key, buffer in self._buffers.items() if key in needed)
        if bound + nbytes > budget:
            return False
        total = sum(buffer.nbytes for buffer in self._buffers.values())
        for key in [key for key in self._buffers if key not in needed]:
            if total + nbytes <= budget:
                break
            total -= self._buffers.pop(key).nbytes
        return True

    def put(self, key: int, buffer: Buffer) -> None:
        """Keep a copy that there is room for."""
        self._buffers[key] = buffer

    def forget(self, keys: Iterable[int]) -> None:
        """Drop the copies of matrices that are gone."""
        for key in keys:
            self._buffers.pop(key, None)

    def spare(self, needed: Collection[int | None]) -> bool:
        """Drop everything but the needed copies; whether there was anything to drop."""
        others = [key for key in self._buffers if key not in needed]
        self.forget(others)
        return bool(others)
