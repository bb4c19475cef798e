"""Targets: what a winner can be taken away as, and the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Final

from app.exports.c_recipe import problem_header, recipe_header, sweep_header
from app.exports.manifest import manifest_of, written
from app.exports.winner import Winner
from kernels.device import Device
from kernels.sources import READ_SWEEP, source

Files = dict[str, bytes]
Manifest = Mapping[str, Any]
_BOTH: Final = ("cuda", "opencl")


class NotExported(ValueError):
    """A winner that a target is not for; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target: what it is, the platforms of its winners, its own files, and the commands that build and check it."""

    summary: str
    platforms: tuple[str, ...]
    files: Callable[[Winner, Manifest], Files]
    commands: tuple[str, ...] = ()


def exported(winner: Winner, target: str) -> Files:
    """All files of a target by name; raises KeyError for an unknown target, NotExported where it is not for this."""
    chosen, refused = TARGETS[target], refusal(target, winner.device)
    if refused is not None:
        raise NotExported(refused)
    manifest = manifest_of(winner)
    own = chosen.files(winner, manifest)
    return {
        "manifest.json": written(manifest),
        "README.md": _readme(winner, manifest, target).encode(),
        "LICENSE": template("LICENSE"),
        **own,
    }


def refusal(target: str, device: Device) -> str | None:
    """Why a target is not for winners on a device; None if it is. Raises KeyError for an unknown target."""
    platforms = TARGETS[target].platforms
    if device.platform in platforms:
        return None
    made = {"cuda": "CUDA", "opencl": "OpenCL"}
    for_those = " and ".join(made[each] for each in platforms)
    return (
        f"{target} is for winners on {for_those}, and {device.id} is of {made[device.platform]}: take it as "
        f"{', '.join(targets_of(device.platform))}"
    )


def targets_of(platform: str) -> list[str]:
    """The targets that winners of a platform can be taken away as."""
    return [name for name, target in TARGETS.items() if platform in target.platforms]


def template(name: str) -> bytes:
    """A file that travels as it is."""
    return files("app.exports").joinpath("templates", *name.split("/")).read_bytes()


def _sources(winner: Winner, _: Manifest) -> Files:
    return {f"{each.entry}.{winner.suffix}": each.source.encode() for each in winner.binaries}


def _cubins(winner: Winner, _: Manifest) -> Files:
    return {f"{each.entry}.cubin": each.cubin for each in winner.binaries if each.cubin is not None}


def _ptx(winner: Winner, _: Manifest) -> Files:
    return {f"{each.entry}.ptx": each.ptx.encode() for each in winner.binaries if each.ptx is not None}


def _sass(winner: Winner, _: Manifest) -> Files:
    return {f"{each.entry}.sass": each.sass.encode() for each in winner.binaries if each.sass is not None}


def _nothing(_: Winner, __: Manifest) -> Files:
    return {}


def _all(winner: Winner, manifest: Manifest) -> Files:
    return _sources(winner, manifest) | _cubins(winner, manifest) | _ptx(winner, manifest)


def _c(winner: Winner, manifest: Manifest, *more: str) -> Files:
    core = ("gemm.h", "gemm.c", "product.h", "driver.h", "graph.h", "launch.h", "check.c")
    own = {f"tilewise_{name}": template(f"c/tilewise_{name}") for name in core}
    own |= {name.rpartition("/")[2]: template(name) for name in more}
    own |= {"tilewise_recipe.h": recipe_header(winner, manifest).encode(), "tilewise_sweep.h": sweep_header().encode()}
    return {**_all(winner, manifest), **own}


def _python(folder: str, winner: Winner, manifest: Manifest) -> Files:
    own = {
        "tilewise_gemm.py": template(f"{folder}/tilewise_gemm.py"),
        "tilewise_recipe.py": files("app.exports").joinpath("interpreter.py").read_bytes(),
    }
    return {**_all(winner, manifest), **own, "check.py": template("python/check.py")}


def _driven(folder: str, winner: Winner, manifest: Manifest) -> Files:
    """A file of Python, with what it shares with the others that launch the cubin."""
    own = {"tilewise_launch.py": template("python/tilewise_launch.py"), "read_sweep.ptx": source(READ_SWEEP).encode()}
    return {**_python(folder, winner, manifest), **own}


def _cpp(winner: Winner, manifest: Manifest) -> Files:
    files = _c(winner, manifest, "cpp/tilewise_gemm.hpp", "cpp/example.cpp", "cpp/example_runtime.cu")
    return {**files, "tilewise_problem.h": problem_header(manifest).encode()}


def _rust(winner: Winner, manifest: Manifest) -> Files:
    """The module, its check, and the problem's constants."""
    problem, bound = winner.problem, manifest["error_bound"]
    kind, put, get = _RUST[problem.dtype]
    sizes = {"M": problem.m, "N": problem.n, "K": problem.k, "BATCH": problem.batch}
    constants = [
        f"pub type Element = {kind};",
        f"pub const ENCODE: fn(f64) -> Element = {put};",
        f"pub const DECODE: fn(Element) -> f64 = {get};",
        *(f"pub const {name}: i64 = {size};" for name, size in sizes.items()),
        f"pub const TRANS_A: bool = {str(problem.trans_a).lower()};",
        f"pub const TRANS_B: bool = {str(problem.trans_b).lower()};",
        f"pub const PER_K: f64 = {bound['per_k']!r};",
        f"pub const ROUNDING: f64 = {bound['rounding']!r};",
    ]
    text = "\n".join([template("rust/elements.rs").decode(), *constants, ""])
    files = _c(winner, manifest, "rust/tilewise_gemm.rs", "rust/check.rs")
    return {**files, "tilewise_problem.rs": text.encode()}


def _dll(winner: Winner, manifest: Manifest) -> Files:
    """The library's source and module; VBA has arrays of Single and Double alone, stored as they are meant."""
    problem = winner.problem
    if problem.dtype not in _VBA or problem.trans_a or problem.trans_b:
        raise NotExported(
            f"dll is for float32 and float64 without transpositions, which VBA's arrays are; not {problem}"
        )
    module = template("dll/tilewise.bas").decode().replace("{{type}}", _VBA[problem.dtype])
    files = _c(winner, manifest, "dll/tilewise_vba.c", "dll/tilewise.def")
    return {**files, "tilewise.bas": module.replace("\n", "\r\n").encode()}


def _torch(winner: Winner, manifest: Manifest) -> Files:
    """Two operators over the C ABI; emulated arithmetic tells its verdict at a product's end, for which none waits."""
    if manifest["verdict_at"] is not None:
        raise NotExported(
            f"torch is not for emulated arithmetic, whose products have to be waited for: {winner.problem}"
        )
    return _c(winner, manifest, "torch/tilewise_torch.py", "torch/tilewise_torch.cpp")


def _numba(winner: Winner, manifest: Manifest) -> Files:
    """The cubin launched in Numba's context, and the tiled kernel in Python: Numba has no form of the others'."""
    made = _driven("numba", winner, manifest)
    if winner.kernel == "tiled" and winner.problem.dtype in _NUMBA:
        made["tilewise_tiled.py"] = template("numba/tilewise_tiled.py")
    return made


_NUMBA: Final = ("float32", "float64")
_VBA: Final = {"float32": "Single", "float64": "Double"}
# Of each dtype: its type in Rust, and how a number is stored and read.
_RUST: Final = {
    "float32": ("f32", "from_f32", "of_f32"),
    "float64": ("f64", "same", "same"),
    "float16": ("u16", "to_half", "of_half"),
    "bfloat16": ("u16", "to_bfloat16", "of_bfloat16"),
}


def _readme(winner: Winner, manifest: Manifest, target: str) -> str:
    """The ten lines of README.md."""
    chosen, problem = TARGETS[target], winner.problem
    stored = f"A {'k x m' if problem.trans_a else 'm x k'}, B {'n x k' if problem.trans_b else 'k x n'}"
    took = "was not measured" if winner.median_ms is None else f"took {winner.median_ms:.4g} ms there ({winner.match})"
    lines = [
        f"# {winner.kernel} for {problem}",
        "",
        f"{chosen.summary} Made by Tilewise for {winner.device.name} ({winner.device.architecture}); it {took}.",
        f"It is for {problem.dtype}, {problem.precision}, {stored}, row-major, contiguous, at multiples of 16 bytes.",
        f"Sizes must meet the {len(manifest['needs'])} needs of manifest.json; others are refused with a sentence.",
        "",
        *(f"    {command}" for command in chosen.commands or ("cat manifest.json",)),
        "",
        f"Errors are within {_bound(manifest)}. The licence of all files is {manifest['licence']}: see LICENSE.",
    ]
    return "\n".join(lines) + "\n"


def _bound(manifest: Manifest) -> str:
    """The bound on errors, as a formula."""
    bound = manifest["error_bound"]
    return f"({bound['per_k']:.3g} k + {bound['rounding']:.3g}) |A||B|"


_CHECKED: Final = ("python check.py",)
_C_CHECK: Final = ("cc -O2 -o check tilewise_check.c -ldl -lm && ./check",)
TARGETS: Final[Mapping[str, Target]] = {
    "opencl": Target(
        "The kernel as OpenCL C, and a file for pyopencl.", ("opencl",), partial(_python, "opencl"), _CHECKED
    ),
    "cu": Target("The source as this config compiles it.", ("cuda",), _sources),
    "ptx": Target("PTX of the oldest compiler that is supported.", ("cuda",), _ptx),
    "sass": Target("The instructions of the cubin that was measured, by nvdisasm.", ("cuda",), _sass),
    "json": Target("The recipe of the launch alone.", _BOTH, _nothing),
    "c": Target(
        "A C ABI with the cubin inside; the driver is opened when the program runs.",
        ("cuda",),
        _c,
        _C_CHECK,
    ),
    "cpp": Target(
        "A header for C++17 over the C ABI, with an example for the host's memory and one for CUDA's runtime.",
        ("cuda",),
        _cpp,
        ("cc -O2 -c tilewise_gemm.c", "c++ -std=c++17 -o example example.cpp tilewise_gemm.o -ldl", *_C_CHECK),
    ),
    "dll": Target(
        "A DLL for Windows with a module for VBA, built by mingw-w64 (i686-w64-mingw32-gcc for 32 bits).",
        ("cuda",),
        _dll,
        ("x86_64-w64-mingw32-gcc -shared -static-libgcc -O2 -o tilewise.dll tilewise_vba.c tilewise.def",),
    ),
    "rust": Target(
        "A module of Rust's standard library alone, over the C ABI.",
        ("cuda",),
        _rust,
        ("cc -O2 -c tilewise_gemm.c", "rustc -O -C link-arg=tilewise_gemm.o -C link-arg=-ldl check.rs && ./check"),
    ),
    "torch": Target(
        "Operators of PyTorch, in Python and as a C++ extension, over the C ABI.",
        ("cuda",),
        _torch,
        ("cc -O2 -shared -fPIC -o libtilewise_gemm.so tilewise_gemm.c -ldl", "python tilewise_torch.py"),
    ),
    "cupy": Target("A file for CuPy that launches the cubin.", ("cuda",), partial(_driven, "cupy"), _CHECKED),
    "numba": Target(
        "A file for Numba that launches the cubin; with a winner of tiled, its kernel written for Numba.",
        ("cuda",),
        _numba,
        _CHECKED,
    ),
    "cuda-core": Target(
        "A file for cuda.core that launches the cubin.", ("cuda",), partial(_driven, "cuda_core"), _CHECKED
    ),
}
