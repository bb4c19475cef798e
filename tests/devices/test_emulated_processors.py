"""The service on processors that are not this one, emulated: its children too, and the linker that PoCL runs.

What runs natively proves nothing, so the interpreter that every process starts others with is a command that emulates.
No time bar holds here.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from shlex import quote

import httpx
import numpy as np
import pytest

from app.cli.spawn import started
from tests.support.devices import child_functions
from tests.support.devices.child_factory import Making

QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not there (Debian's package qemu-user has it)"),
    pytest.mark.timeout(900),
]
# The model, the name that LLVM is to be given, and a feature that the model has and one that it lacks.
MODELS = [
    ("Nehalem", "nehalem", "sse4_2", "avx"),
    ("Haswell", "haswell", "fma", "adx"),
    ("EPYC-Rome", "haswell", "adx", "avx512f"),
    ("EPYC-Milan", "haswell", "adx", "avx512f"),
]


def interpreter(folder: Path, model: str) -> Path:
    """A command that is the interpreter on a processor of that model, and is its own sys.executable."""
    command = folder / "bin" / "python"
    command.parent.mkdir()
    for entry in ("pyvenv.cfg", "lib"):
        if (Path(sys.prefix) / entry).exists():
            (folder / entry).symlink_to(Path(sys.prefix) / entry)
    emulated = [str(QEMU), "-cpu", model, "-0", str(command), sys.executable]
    command.write_text(f'#!/bin/sh\nexec {" ".join(map(quote, emulated))} "$@"\n')
    command.chmod(0o700)
    return command


@pytest.mark.parametrize(("model", "name", "has", "lacks"), MODELS)
def test_service_makes_right_products_on_an_emulated_processor(
    model: str, name: str, has: str, lacks: str, tmp_path: Path, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = interpreter(tmp_path, model)
    monkeypatch.setattr(sys, "executable", str(command))
    monkeypatch.setattr("app.cli.spawn.STARTING", 400.0)
    monkeypatch.delenv("TILEWISE_CACHE_DIR", raising=False)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)  # the host's, whose instructions are not the model's
    child = make(starting=300.0)
    executable, emulated = child.call(child_functions.interpreter_and_processor, deadline=300.0)
    child.close()
    assert executable == str(command), "what the child starts, such as the linker, would not be emulated"
    assert has in emulated.features
    assert lacks not in emulated.features
    with (
        started(tmp_path / "data", devices="opencl", slab_bytes=str(2**24)) as service,
        httpx.Client(base_url=service.url, timeout=600) as client,
    ):
        (device,) = client.get("/devices").json()["devices"]
        assert device["architecture"] == name
        assert device["name"] == emulated.name
        draw = np.random.default_rng(5)
        a, b = (draw.integers(-8, 9, shape).astype(np.float32) for shape in ((33, 17), (17, 9)))
        answer = client.post("/matmul", params={"kernel": "naive"}, json={"a": a.tolist(), "b": b.tolist()})
        assert answer.status_code == 200, answer.text
        assert np.array_equal(np.array(answer.json()["c"], np.float32), a @ b)
        linker = (tmp_path / "data" / "cache" / "bin" / "ld").read_text()
        assert str(command) in linker, "the linker would not be emulated"
        service.process.kill()  # its defaults are still being verified, which takes minutes here
