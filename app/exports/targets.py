"""Targets: what a winner can be taken away as, and the files of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, Final

from app.exports.c_recipe import recipe_header
from app.exports.manifest import manifest_of, written
from app.exports.winner import Winner

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
    chosen = TARGETS[target]
    platform = winner.device.platform
    if platform not in chosen.platforms:
        made = {"cuda": "CUDA", "opencl": "OpenCL"}
        raise NotExported(
            f"{target} is for winners on {' and '.join(made[each] for each in chosen.platforms)}, and {winner.kernel} "
            f"won on {winner.device.id}, which is of {made[platform]}: take it as {', '.join(targets_of(platform))}"
        )
    manifest = manifest_of(winner)
    own = chosen.files(winner, manifest)
    return {
        "manifest.json": written(manifest),
        "README.md": _readme(winner, manifest, target).encode(),
        "LICENSE": template("LICENSE"),
        **own,
    }


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


def _nothing(_: Winner, __: Manifest) -> Files:
    return {}


def _all(winner: Winner, manifest: Manifest) -> Files:
    return _sources(winner, manifest) | _cubins(winner, manifest) | _ptx(winner, manifest)


def _c(winner: Winner, manifest: Manifest, *more: str) -> Files:
    core = ("gemm.h", "gemm.c", "product.h", "driver.h", "launch.h", "check.c")
    own = {f"tilewise_{name}": template(f"c/tilewise_{name}") for name in core}
    own |= {name.rpartition("/")[2]: template(name) for name in more}
    return {**_all(winner, manifest), **own, "tilewise_recipe.h": recipe_header(winner, manifest).encode()}


def _python(folder: str, winner: Winner, manifest: Manifest) -> Files:
    own = {
        "tilewise_gemm.py": template(f"{folder}/tilewise_gemm.py"),
        "tilewise_recipe.py": files("app.exports").joinpath("interpreter.py").read_bytes(),
    }
    check = {} if folder == "cuda_core" else {"check.py": template("python/check.py")}
    return {**_all(winner, manifest), **own, **check}


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
TARGETS: Final[Mapping[str, Target]] = {
    "opencl": Target(
        "The kernel as OpenCL C, and a file for pyopencl.", ("opencl",), partial(_python, "opencl"), _CHECKED
    ),
    "cu": Target("The source as this config compiles it.", ("cuda",), _sources),
    "ptx": Target("PTX of the oldest compiler that is supported.", ("cuda",), _ptx),
    "json": Target("The recipe of the launch alone.", _BOTH, _nothing),
    "c": Target(
        "A C ABI with the cubin inside; the driver is opened when the program runs.",
        ("cuda",),
        _c,
        ("cc -O2 -o check tilewise_check.c -ldl -lm", "./check"),
    ),
    "cupy": Target("A file for CuPy that launches the cubin.", ("cuda",), partial(_python, "cupy"), _CHECKED),
    "cuda-core": Target("A file for cuda.core that launches the cubin.", ("cuda",), partial(_python, "cuda_core")),
}
