"""Memory of a GPU that another process made: opened by its handle, read and written, and never past its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.devices.backend import Backend, Buffer
from app.errors import InvalidRegion

cuda = pytest.importorskip("app.devices.cuda")
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("driver")]

_NBYTES = 3 * 2**20
# Allocates, fills with 0, 1, ..., prints the handle, and, as often as it is told to, the bytes' sum.
_OWNER = f"""
import sys
import numpy as np
from cupy.cuda import runtime
address = runtime.malloc({_NBYTES})
host = np.arange({_NBYTES} // 4, dtype=np.uint32)
runtime.memcpy(address, host.ctypes.data, {_NBYTES}, runtime.memcpyHostToDevice)
print(runtime.ipcGetMemHandle(address).hex(), flush=True)
for _ in sys.stdin:
    runtime.memcpy(host.ctypes.data, address, {_NBYTES}, runtime.memcpyDeviceToHost)
    print(int(host.sum(dtype=np.uint64)), flush=True)
"""


@pytest.fixture
def owner() -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_another_process_memory_is_read_written_and_bounded(owner: Any, tmp_path: Path) -> None:
    backend: Backend = cuda.CudaBackend("cuda:0", tmp_path)
    sharing, raw = cuda.Sharing(), bytes.fromhex(owner.stdout.readline())
    buffer = sharing.open(raw, _NBYTES)
    again = sharing.open(raw, 64)  # one process opens an allocation once: its users are counted
    out = np.empty(16, np.uint32)
    backend.download(Buffer(buffer.handle, out.nbytes, 4096), out)
    np.testing.assert_array_equal(out, np.arange(1024, 1040))
    others = sum(range(_NBYTES // 4)) - sum(range(1024, 1040))
    for number in range(100):  # what is written is there at once
        sharing.write(Buffer(buffer.handle, out.nbytes, 4096), np.full_like(out, number))
        owner.stdin.write("\n")
        owner.stdin.flush()
        assert int(owner.stdout.readline()) == others + number * out.size
    with pytest.raises(InvalidRegion, match="the region"):
        sharing.open(raw, 2**40)
    sharing.close(again)
    sharing.close(buffer)
    backend.close()


@pytest.mark.parametrize("raw", [b"", bytes(63), bytes(64), b"\xff" * 64])
def test_a_handle_that_is_none_is_refused_and_the_context_lives_on(raw: bytes, tmp_path: Path) -> None:
    backend: Backend = cuda.CudaBackend("cuda:0", tmp_path)
    with pytest.raises(InvalidRegion):
        cuda.Sharing().open(raw, 64)
    backend.download(backend.upload(np.ones(4)), np.empty(4))
    backend.close()
