"""CUDA compilation, which needs no GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from app.devices import binary_cache
from app.errors import CompileFailed
from kernels import CATALOGUE
from kernels.device import Device, Limits
from kernels.launch import Build
from kernels.problem import Problem

cuda = pytest.importorskip("app.devices.cuda")
options = pytest.importorskip("app.devices.cuda.nvrtc_options").options
signed = pytest.importorskip("app.devices.cuda.nvrtc_options").signed

H200 = Device(
    id="cuda:0",
    platform="cuda",
    name="NVIDIA H200",
    architecture="sm_90",
    driver="",
    runtime="",
    compiler="",
    uuid="",
    memory_bytes=141 * 2**30,
    limits=Limits(1024, 227 * 1024, 32, 132, 4.8e12, 66.9e12, 33.5e12),
)


def build_of(name: str, dtype: str = "float32") -> Build:
    kernel, problem = CATALOGUE[name], Problem(64, 64, 64, dtype=dtype)
    return kernel.launch(kernel.default(problem, H200), problem, H200).build


def known(facts: Path) -> dict[str, object]:
    """What is told of a binary, but how long it took, and the digest that is of that too."""
    told = json.loads(facts.read_text(encoding="utf-8"))
    return {name: told[name] for name in told.keys() - {"seconds", "sha256"}}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_kernel_compiles_for_every_architecture_without_spilling(architecture: str, tmp_path: Path) -> None:
    cubin = cuda.compile_cubin(build_of("tiled"), architecture, tmp_path)
    assert cubin.path.read_bytes()[:4] == b"\x7fELF"
    assert cubin.registers is not None
    assert 8 <= cubin.registers <= 255
    assert cubin.spills == 0


def test_a_compiled_binary_is_found_again_by_source_flags_and_compiler(tmp_path: Path) -> None:
    first = cuda.compile_cubin(build_of("tiled"), "sm_90", tmp_path)
    written = first.path.stat().st_mtime_ns
    assert cuda.compile_cubin(build_of("tiled"), "sm_90", tmp_path) == first
    assert first.path.stat().st_mtime_ns == written
    others = [
        cuda.compile_cubin(build_of("tiled", "float64"), "sm_90", tmp_path),
        cuda.compile_cubin(build_of("tiled"), "sm_80", tmp_path),
    ]
    assert len({first.path, *(other.path for other in others)}) == 3
    names = sorted(path.suffix for path in (tmp_path / "cuda").iterdir())
    assert names == [".cubin"] * 3 + [".json"] * 3, "something was left aside"


def test_a_binary_without_its_facts_is_compiled_again(tmp_path: Path) -> None:
    first = cuda.compile_cubin(build_of("naive"), "sm_90", tmp_path)
    facts = first.path.with_suffix(".json")
    before = known(facts)
    facts.unlink()
    again = cuda.compile_cubin(build_of("naive"), "sm_90", tmp_path)
    assert again == replace(first, seconds=again.seconds)
    assert known(facts) == before


@pytest.mark.drawn(2)
@pytest.mark.parametrize("of", ["binary", "facts", "facts that are none", "an older cache"])
def test_a_binary_whose_bytes_were_changed_is_compiled_again_and_never_loaded(tmp_path: Path, of: str) -> None:
    first = cuda.compile_cubin(build_of("naive"), "sm_90", tmp_path)
    binary, facts = first.path.read_bytes(), first.path.with_suffix(".json")
    told, now = json.loads(facts.read_text(encoding="utf-8")), known(facts)
    if of == "binary":
        first.path.write_bytes(binary[:-1] + bytes([binary[-1] ^ 1]))
    elif of == "facts":
        facts.write_text(json.dumps(told | {"registers": 1}), encoding="utf-8")
    elif of == "an older cache":
        facts.write_text(json.dumps({"registers": 1, "spills": 0, "warnings": []}), encoding="utf-8")
    else:
        facts.write_text("[" * 10_000, encoding="utf-8")
    again = cuda.compile_cubin(build_of("naive"), "sm_90", tmp_path)
    assert again == replace(first, seconds=again.seconds)
    assert first.path.read_bytes() == binary
    assert known(facts) == now


def test_a_compilation_is_timed_once_and_a_cache_that_did_not_tell_is_made_again(tmp_path: Path) -> None:
    started = monotonic()
    first = cuda.compile_cubin(build_of("tiled"), "sm_90", tmp_path)
    assert 0 < first.seconds <= monotonic() - started
    assert cuda.compile_cubin(build_of("tiled"), "sm_90", tmp_path).seconds == first.seconds
    binary_cache.write(first.path, first.path.read_bytes(), {"registers": 1, "spills": 0, "warnings": []})
    again = cuda.compile_cubin(build_of("tiled"), "sm_90", tmp_path)
    assert again == replace(first, seconds=again.seconds)


def test_array_in_local_memory_counts_as_spilling(tmp_path: Path) -> None:
    text = """
    extern "C" __global__ void matmul(float *a, float *b, float *c, long long m, long long n, long long k) {
        float kept[64];
        for (int i = 0; i < 64; i++) kept[i] = a[i * n];
        for (int i = 0; i < 64; i++) c[i] = kept[(i * (int)k) & 63];
    }"""
    assert cuda.compile_cubin(Build("spilling", text, "matmul", ()), "sm_90", tmp_path).spills == 256


# The sums are used while the product that adds to them is under way: the compiler has to wait before.
WAITING = """
extern "C" __global__ void __launch_bounds__(128) matmul(float *c, unsigned long long at, int n) {
    float d[4] = {};
    for (int k = 0; k < n; k++) {
        asm volatile("wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4,"
                     " %4, 1, 1, 1, 0, 0; wgmma.commit_group.sync.aligned;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(at + k));
        d[0] += WAITS;
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int i = 0; i < 4; i++) c[threadIdx.x * 4 + i] = d[i];
}"""


def test_serialized_products_are_told_of_a_cached_binary_too(tmp_path: Path) -> None:
    for _ in range(2):
        waiting = cuda.compile_cubin(Build("waiting", WAITING, "matmul", (("WAITS", "1"),)), "sm_90", tmp_path)
        assert any("C75" in each for each in waiting.warnings)
    assert cuda.compile_cubin(build_of("naive"), "sm_90", tmp_path).warnings == ()


def test_device_compiler_is_named_with_its_options() -> None:
    assert signed("NVRTC 12.9", "sm_90") == "NVRTC 12.9 -arch=sm_90a -std=c++17"
    assert signed("NVRTC 12.9", "sm_89") == "NVRTC 12.9 -arch=sm_89 -std=c++17"
    assert set(signed("", "sm_80").split()) == {one for one in options("sm_80") if "ptxas" not in one}


def test_the_compilers_words_are_the_error_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed, match="BK is off"):
        cuda.compile_cubin(Build("broken", "#error BK is off\n", "matmul", ()), "sm_90", tmp_path)
    with pytest.raises(CompileFailed, match="gpu-architecture"):
        cuda.compile_cubin(build_of("naive"), "sm_999", tmp_path)
    text = 'extern "C" __global__ void matmul(int *c) { __shared__ int s[20000]; s[*c] = 1; *c = s[c[1]]; }'
    with pytest.raises(CompileFailed, match="uses too much shared data"):
        cuda.compile_cubin(Build("greedy", text, "matmul", ()), "sm_90", tmp_path)
    assert not (tmp_path / "cuda").exists()
