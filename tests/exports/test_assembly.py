"""PTX and SASS line by line: the same instructions as without line information, each of the right line."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import which

import pytest

from app.exports.assembly import AssemblyLine, ptx_lines, sass_lines
from app.services.exports.architectures import device_of
from app.services.exports.disassembler import disassembled
from kernels import KERNELS
from kernels.launch import Build
from kernels.problem import Problem

cuda = pytest.importorskip("app.devices.cuda")

SAID = """
//--------------------- .nv.info --------------------------
        .section        .nv.info,"",@0
//--------------------- .text.matmul --------------------------
        .section        .text.matmul,"ax",@progbits
matmul:
.text.matmul:
        //## File "/here/tiled.cu", line 318
        /*0000*/                   LDC R1, c[0x0][0x28] ;
                                                             /* 0x00000a00ff017b82 */
        //## File "/usr/include/cuda_fp16.h", line 7
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        //## File "/here/tiled.cu", line 325
.L_x_0:
        /*0020*/                   EXIT ;
"""


def build_of(name: str) -> Build:
    kernel, problem = KERNELS[name], Problem(1024, 1024, 1024)
    device = device_of("sm_90")
    return kernel.launch(kernel.default(problem, device), problem, device).build


@pytest.mark.rotating
@pytest.mark.parametrize("name", ["tiled", "register_tiled", "lesson03_tiled"])
def test_ptx_is_what_is_compiled_without_lines_and_each_instruction_is_of_a_line_of_code(name: str) -> None:
    build = build_of(name)
    found = ptx_lines(cuda.compile_ptx(build, "sm_90", line_info=True), f"{build.name}.cu")
    plain = cuda.compile_ptx(build, "sm_90").rstrip().splitlines()
    assert [one.text for one in found if one.text.strip()] == [line.expandtabs(4) for line in plain if line.strip()]
    source = build.text.splitlines()
    code = {number for number, line in enumerate(source, 1) if re.sub(r"//.*", "", line).strip()}
    of = {one.source_line for one in found} - {None}
    assert len(of) > 8
    assert of <= code


def test_the_lines_of_the_article_are_those_of_the_instructions_that_do_what_they_say() -> None:
    build = build_of("lesson03_tiled")
    found = ptx_lines(cuda.compile_ptx(build, "sm_90", line_info=True), f"{build.name}.cu")
    source = build.text.splitlines()
    lines = {
        name: {source[(one.source_line or 0) - 1].strip() for one in found if f"{name}." in one.text}
        for name in ("st.global", "ld.global", "bar", "fma.rn")
    }
    assert lines["st.global"] == {"C[row * N + col] = sum;"}
    assert {line[:2] for line in lines["ld.global"]} == {"As", "Bs"}
    assert {line.partition("(")[0] for line in lines["bar"]} == {"__syncthreads"}, lines
    assert {line[:6] for line in lines["fma.rn"]} == {"sum +="}, lines


def test_a_cubin_with_lines_is_kept_apart_and_found_again_by_its_comments(tmp_path: Path) -> None:
    build = build_of("naive")
    plain, lined = (cuda.compile_cubin(build, "sm_90", tmp_path, line_info=each) for each in (False, True))
    moved = Build(build.name, f"// one line more\n{build.text}", build.entry, build.macros)
    assert moved.digest == build.digest
    paths = {plain.path, lined.path, cuda.compile_cubin(moved, "sm_90", tmp_path, line_info=True).path}
    assert len(paths) == 3
    assert cuda.compile_cubin(build, "sm_90", tmp_path, line_info=True) == lined
    assert plain.registers == lined.registers


def test_sass_is_instructions_after_their_addresses_each_of_the_sources_line() -> None:
    assert sass_lines(SAID, "tiled.cu") == (
        AssemblyLine("matmul:", None),
        AssemblyLine("  0000  LDC R1, c[0x0][0x28]", 318),
        AssemblyLine("  0010  @!P0 BRA `(.L_x_0)", None),
        AssemblyLine(".L_x_0:", None),
        AssemblyLine("  0020  EXIT", 325),
    )


@pytest.mark.skipif(which("nvdisasm") is None, reason="nvdisasm is not on PATH")
def test_sass_of_a_cubin_with_lines_is_that_of_the_cubin_that_is_measured(tmp_path: Path) -> None:
    build = build_of("tiled")
    plain, lined = (
        cuda.compile_cubin(build, "sm_90", tmp_path, line_info=each).path.read_bytes() for each in (False, True)
    )
    found = sass_lines(disassembled(lined, line_info=True), "tiled.cu")
    assert [one.text for one in found] == [one.text for one in sass_lines(disassembled(plain), "tiled.cu")]
    assert sum(one.source_line is not None for one in found) > len(found) / 2
