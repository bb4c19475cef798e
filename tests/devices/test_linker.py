"""PoCL's linker is ours: what it makes is loaded and run, and what it cannot make is refused."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.devices.opencl.pocl.environment import environment
from app.devices.opencl.pocl.linker import CannotLinkError, link

PROGRAM = """
import sys, os
from pathlib import Path
from app.devices.backend import Operands
from app.devices.opencl import OpenCLBackend
from kernels import CATALOGUE
from kernels.problem import Problem
import numpy as np

backend = OpenCLBackend("opencl:0", Path(sys.argv[1]))
problem = Problem(33, 17, 9, trans_b=True)
kernel = CATALOGUE["tiled"]
launch = kernel.launch(kernel.default(problem, backend.device), problem, backend.device)
a, b = np.ones(problem.a_shape, "float32"), np.ones(problem.b_shape, "float32")
operands = Operands(backend.upload(a), backend.upload(b), backend.allocate(problem.c_bytes))
backend.run(backend.compile(launch.build), launch, operands)
c = np.empty((33, 17), "float32")
backend.download(operands.c, c)
print((c == 9).all())
"""

SOURCE = """
#include <string.h>
static const char *const words[] = {"zero", "one", "two"};
static int counted;
int shared = 40;
extern int absent(void) __attribute__((weak));
__attribute__((visibility("hidden"))) int *where(void) { return &counted; }
const char *word(int n) { return words[n]; }
int count(void) { *where() += 1; return counted + shared; }
int has_absent(void) { return absent != 0; }
void *(*setter(void))(void *, int, size_t) { return memset; }
void clear(char *at, size_t n) { memset(at, 7, n); }
int choose(int n) {
  switch (n) { case 0: return 11; case 1: return 5; case 2: return 99; case 3: return -4; case 4: return 8; }
  return 0;
}
"""


@pytest.mark.slow
def test_a_kernel_is_compiled_and_run_where_the_host_has_no_linker(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")], env=bare, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == ["True"], ran.stderr


def test_our_linker_stands_first_on_the_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        monkeypatch.setenv("PATH", environment(tmp_path)["PATH"])
    assert shutil.which("ld") == str(tmp_path / "bin" / "ld")
    assert os.environ["PATH"].split(os.pathsep).count(str(tmp_path / "bin")) == 1


def test_c_that_uses_every_kind_of_address_is_linked_and_runs(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(_linked(tmp_path)))
    library.word.restype = ctypes.c_char_p
    assert [library.word(n) for n in range(3)] == [b"zero", b"one", b"two"]
    assert (library.count(), library.count(), library.has_absent()) == (41, 42, 0)
    assert [library.choose(n) for n in range(6)] == [11, 5, 99, -4, 8, 0]
    room = ctypes.create_string_buffer(b"abcd", 4)
    library.clear(room, 3)
    assert room.raw == b"\7\7\7d"
    library.setter.restype = ctypes.c_void_p
    assert library.setter() == ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value
    with pytest.raises(AttributeError, match="where"):
        _ = library.where


def test_what_is_no_object_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotLinkError, match="no object file"):
        link(Path(sys.executable).read_bytes())
    bad = tmp_path / "bad.o"
    bad.write_bytes(b"\x7fELF\x02\x01\x01")
    command = shutil.which("ld", path=environment(tmp_path)["PATH"])
    assert command is not None
    ran = subprocess.run(
        [command, "-shared", "-o", str(tmp_path / "x.so"), str(bad)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("tilewise's linker: ")
    assert not (tmp_path / "x.so").exists()


def test_thread_local_storage_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(CannotLinkError, match="a relocation of kind"):
        link(_compiled(tmp_path, "__thread int mine; int *at(void) { return &mine; }").read_bytes())


def _linked(folder: Path) -> Path:
    command = shutil.which("ld", path=environment(folder)["PATH"])
    assert command is not None
    target = folder / "linked.so"
    subprocess.run([command, "-shared", "-o", str(target), str(_compiled(folder, SOURCE)), "-lc"], check=True)
    return target


def _compiled(folder: Path, source: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make an object file with")
    (folder / "source.c").write_text(source)
    subprocess.run([compiler, "-O2", "-fPIC", "-c", "source.c", "-o", "source.o"], cwd=folder, check=True)
    return folder / "source.o"
