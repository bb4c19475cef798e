"""How exact products are: ours, sequential FMA's and the vendor's against float64, on easy operands and on hard ones.

    python -m benchmarks.kernels.accuracy OUT.json [--device cuda:0] [--precision emulated]
        [--kernels NAME ...] [--small]

Every kernel that computes the class in its default config multiplies each pair of operands of accuracy_operands.py; so
do naive, which adds each element up in turn by FMAs, and the vendor's library, both in strict float32. Of each product
are told the relative L2 error, and the largest |error|_ij over k 2^-23 (|A| |B|)_ij, which is at most 1 in an accurate
one. A product that its kernel declines, and infinities and NaN that strict arithmetic has not, are told as such. The
exit status is 1 where a product is outside the definition of its precision: for emulated float32 a relative L2 above
1.1 times sequential FMA's on N(0,1), or any element outside the bound.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from app.devices import backend as base
from app.devices.backend import Backend
from app.devices.opencl import OpenCLBackend
from app.dtypes import Array
from app.tuning.verify.tolerance import POISON
from benchmarks.kernels.accuracy_operands import DEPTHS, SIDE, Operands, cases
from benchmarks.report.accuracy_table import shown
from kernels import CATALOGUE
from kernels.kernel import Kernel
from kernels.launch import Launch
from kernels.problem import Problem

SEED = 20261121
UNIT = 2.0**-23
ALLOWED = 1.1  # times sequential FMA's relative L2, on N(0,1)
SEQUENTIAL = "sequential FMA"
SMALL, SHALLOW = 24, (64, 96)


@dataclass(frozen=True, slots=True)
class Error:
    """Of one product: relative L2, and the largest share of the bound; None where the kernel declined it.

    `declined` is the verdict, `unlike` counts elements that are not finite where the exact product is a float32.
    """

    by: str
    relative_l2: float | None = None
    of_bound: float | None = None
    unlike: int = 0
    declined: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One pair of operands: everybody's errors, and those of ours that are outside the definition."""

    operands: str
    k: int
    normal: bool
    errors: tuple[Error, ...]
    outside: tuple[str, ...]


def compared(by: str, c: Array, exact: Array, scale: Array, k: int) -> Error:
    """The error of a product; `exact` is A B and `scale` |A| |B|, both in float64."""
    finite = np.isfinite(c) | (np.abs(exact) > np.finfo(np.float32).max)
    error = np.where(np.isfinite(c), np.abs(c.astype(np.float64) - exact), 0)
    # The bound is of roundings in the normal range: below it each of k steps may lose half of the smallest float.
    beyond = np.maximum(error - k * float(np.finfo(np.float32).smallest_subnormal) / 2, 0)
    shares = np.divide(beyond, k * UNIT * scale, out=np.where(beyond > 0, np.inf, 0.0), where=scale > 0)
    norm = float(np.linalg.norm(exact))
    relative = float(np.linalg.norm(error)) / norm if norm else 0.0
    return Error(by, relative, float(shares.max()), int(np.count_nonzero(~finite)))


class Products:
    """A device, and the products on it."""

    def __init__(self, backend: Backend, precision: str) -> None:
        self.backend, self.precision = backend, precision

    def kernels(self, problem: Problem, names: Sequence[str]) -> list[Kernel]:
        """Those that compute the problem's class here, or of them those that are named."""
        every = [one for one in CATALOGUE.values() if one.covers(problem, self.backend.device)]
        return [one for one in every if not names or one.name in names]

    def line(self, given: Operands, names: Sequence[str]) -> Line:
        """All errors on one pair of operands."""
        (m, k), n = given.a.shape, given.b.shape[1]
        strict, own = Problem(m, n, k), Problem(m, n, k, precision=self.precision)
        exact = np.matmul(given.a.astype(np.float64), given.b.astype(np.float64))
        scale = np.matmul(np.abs(given.a).astype(np.float64), np.abs(given.b).astype(np.float64))
        naive = CATALOGUE["naive"]
        launch = naive.launch(naive.default(strict, self.backend.device), strict, self.backend.device)
        plain = [compared(SEQUENTIAL, self._made(launch, given)[0], exact, scale, k)]
        if (library := self.backend.vendor.name) is not None:
            plain.append(compared(library, self._library(strict, given), exact, scale, k))
        ours = []
        for kernel in self.kernels(own, names):
            launch = kernel.launch(kernel.default(own, self.backend.device), own, self.backend.device)
            c, declined = self._made(launch, given)
            found = Error(kernel.name, declined=declined)
            ours.append(found if declined else compared(kernel.name, c, exact, scale, k))
        outside = tuple(each.by for each in ours if not within(each, plain[0], normal=given.normal))
        return Line(given.name, k, given.normal, (*ours, *plain), outside)

    def _made(self, launch: Launch, given: Operands) -> tuple[Array, int]:
        where = self._uploaded(given)
        program = self.backend.compile(launch.build)
        self.backend.run(program, launch, where)
        declined = self.backend.declined(launch)
        return self._back(where, given), declined

    def _library(self, problem: Problem, given: Operands) -> Array:
        where = self._uploaded(given)
        self.backend.vendor_run(problem, where)
        return self._back(where, given)

    def _uploaded(self, given: Operands) -> base.Operands:
        a, b = (self.backend.upload(np.ascontiguousarray(each)) for each in (given.a, given.b))
        c = self.backend.allocate(4 * given.a.shape[0] * given.b.shape[1])
        self.backend.fill(c, POISON)
        return base.Operands(a, b, c)

    def _back(self, where: base.Operands, given: Operands) -> Array:
        c = np.empty((given.a.shape[0], given.b.shape[1]), np.float32)
        self.backend.download(where.c, c)
        return c


def within(found: Error, sequential: Error, *, normal: bool) -> bool:
    """Whether a product keeps the definition of an accurate float32; one that is declined does."""
    if found.relative_l2 is None or found.of_bound is None:
        return True
    allowed = ALLOWED * (sequential.relative_l2 or 0.0)
    return found.of_bound <= 1 and not found.unlike and (not normal or found.relative_l2 <= allowed)


def lines(products: Products, names: Sequence[str], *, small: bool) -> Iterator[Line]:
    """A line for each pair of operands."""
    sizes = (SMALL, SHALLOW, SHALLOW[-1]) if small else ()
    for given in cases(SEED, *sizes):
        yield products.line(given, names)


def opened(device: str, cache: Path) -> Backend:
    """The device, in this process."""
    if not device.startswith("cuda"):
        return OpenCLBackend(device, cache)
    from app.devices.cuda import CudaBackend  # noqa: PLC0415 - only where there is a GPU

    return CudaBackend(device, cache)


def main() -> None:
    """Measure, write, and fail where a product is outside the definition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="emulated", choices=("emulated", "strict"))
    parser.add_argument("--kernels", nargs="+", default=[])
    parser.add_argument("--small", action="store_true", help="a few elements, for a processor")
    options = parser.parse_args()
    with TemporaryDirectory() as fresh:
        products = Products(opened(options.device, Path(fresh)), options.precision)
        side, depth = (SMALL, SHALLOW[-1]) if options.small else (SIDE, DEPTHS[-1])
        if not products.kernels(Problem(side, side, depth, precision=options.precision), options.kernels):
            raise SystemExit(f"no kernel computes float32 ({options.precision}) on {options.device}")
        found = []
        for line in lines(products, options.kernels, small=options.small):
            found.append(line)
            errors = [f"{each.by} {shown(asdict(each))};" for each in line.errors]
            print(f"{line.operands:28}", *errors, *(f"OUTSIDE: {name}" for name in line.outside), flush=True)
    device = products.backend.device
    head = {"device": device.name, "environment": device.environment, "precision": options.precision, "seed": SEED}
    options.out.write_text(json.dumps(head | {"lines": [asdict(each) for each in found]}, indent=1) + "\n")
    raise SystemExit(1 if any(line.outside for line in found) else 0)


if __name__ == "__main__":
    main()
