"""A kernel compiled behind our header with -DTARGET_... is the tuned cubin, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.interchange import store_results
from app.services.interchange.export import macros_of
from kernels import CATALOGUE
from tests.interchange.test_kernel_tuner import space_of

pytestmark = pytest.mark.slow


def cubin(text: str, macros: Sequence[str]) -> bytes:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(text, "kernel.cu", [], [])
    nvrtc.compileProgram(program, [*macros, "--gpu-architecture=sm_90", "--device-as-default-execution-space"])
    return bytes(nvrtc.getCUBIN(program))


def test_the_header_chooses_the_tuned_cubin() -> None:
    space = space_of("register_tiled-h200-512x512x512")
    header = "".join(store_results.header_lines([space], macros_of))
    _, best = store_results.common([space])
    text = CATALOGUE["register_tiled"].text
    tuned = cubin(text, [f"-D{name}={value}" for name, value in macros_of(space, best)])
    assert cubin(f"{header}#line 1\n{text}", ["-DTARGET_NVIDIA_H200=1"]) == tuned
