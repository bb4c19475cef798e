"""PoCL's built-in library, where its own choice needs features that the processor lacks.

PoCL looks for its libraries beside its own file, under the name that it has loaded itself by. Where it would take a
wrong one, it is loaded through a folder of symbolic links, in which every library's name leads to the right one.
"""

from __future__ import annotations

import os
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from app.devices.opencl.pocl.cpu_name import library_for, taken_library


def substituted(cache_dir: Path, features: frozenset[str]) -> dict[str, str]:
    """The environment variables that make PoCL load the right library; none if it does so itself, or is unknown."""
    right = library_for(features)
    package, data = _folder("pyopencl"), _folder("pocl_binary_distribution")
    if right == taken_library(features) or package is None or data is None:
        return {}
    programs = sorted((package / ".libs").glob("libpocl*.so*"))
    if not programs or not sorted((data / ".libs/share/pocl").glob(f"kernel-*-{right}.bc")):
        return {}
    folder = cache_dir.absolute() / "bin" / f"pocl-{right}-{sha256(os.fsencode(programs[0])).hexdigest()[:8]}"
    if not folder.exists():
        _link(folder, programs[0], data, right)
    return {"OCL_ICD_VENDORS": str(folder / "vendors")}


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _link(folder: Path, program: Path, data: Path, right: str) -> None:
    """Make the folder aside and rename it: another child may be making it too."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    rmtree(aside, ignore_errors=True)
    libraries = aside / data.name / ".libs/share/pocl"
    for each in (aside / "vendors", aside / "pyopencl/.libs", libraries):
        each.mkdir(parents=True)
    (aside / "pyopencl/.libs" / program.name).symlink_to(program)
    (aside / "vendors/pocl.icd").write_text(str(folder / "pyopencl/.libs" / program.name), encoding="utf-8")
    for path in (data / ".libs").glob("*.so*"):
        (libraries.parents[1] / path.name).symlink_to(path)
    for path in (data / ".libs/share/pocl").iterdir():
        start, dash, _ = path.name.rpartition("-")
        target = path.with_name(f"{start}{dash}{right}.bc") if path.suffix == ".bc" else path
        (libraries / path.name).symlink_to(target)
    try:
        aside.rename(folder)
    except OSError:
        rmtree(aside)  # somebody else has made it meanwhile
        if not folder.exists():
            raise
