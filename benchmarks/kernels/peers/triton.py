"""Triton's side: which binaries a problem wants, compiled without a GPU, and how they are launched through CuPy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from app.devices import binary_cache
from app.devices.backend import Backend, Buffer
from kernels.problem import Problem

KERNEL = Path(__file__).with_name("triton_kernel.py")
MULTIPLE = 16  # what Triton looks for in addresses and sizes, so that it may load 16 bytes
TYPES = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}
# How float32 operands are multiplied; others have one way.
PRECISIONS = {"strict": "ieee", "tf32": "tf32", "emulated": "tf32x3"}
OPERANDS, SIZES = ("a", "b", "c"), ("m", "n", "k")
SCRATCH = ("partials", "counters")  # what slices of k leave, and how many of a tile's have ended


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """One config: the program's tile of C and its step along k, rows of tiles to a group, warps, stages of copies.

    `persistent` programs, one an SM, take tiles in turn; or k is in so many `splits`.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    GROUP: int = 8
    persistent: int = 0
    splits: int = 1

    @property
    def entry(self) -> str:
        """The kernel that has this config."""
        return "persistent" if self.persistent else "split_k" if self.splits > 1 else "matmul"


TILES = (
    *(Tile(16, 32, 64, 2, 5), Tile(16, 64, 128, 4, 4), Tile(32, 32, 32, 2, 5), Tile(32, 64, 32, 2, 5)),
    *(Tile(64, 16, 64, 2, 4), Tile(64, 32, 32, 2, 5), Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 4, 4)),
    *(Tile(64, 64, 64, 4, 4), Tile(64, 128, 32, 4, 4), Tile(128, 16, 32, 4, 4), Tile(128, 32, 32, 4, 4)),
    *(Tile(128, 64, 32, 4, 4), Tile(128, 64, 16, 4, 5), Tile(128, 128, 16, 8, 4), Tile(128, 128, 32, 8, 3)),
    *(Tile(64, 256, 16, 8, 4), Tile(128, 256, 16, 8, 3), Tile(256, 64, 32, 8, 3)),
)

# Of tensor cores, for elements of 16 bits; k goes half as far in float32.
TENSOR_TILES = (
    *(Tile(128, 256, 64, 8, 3), Tile(128, 256, 64, 8, 4), Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 4)),
    *(Tile(128, 128, 64, 4, 4), Tile(128, 128, 128, 8, 3), Tile(64, 256, 64, 4, 4), Tile(256, 64, 64, 8, 4)),
    *(Tile(128, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4), Tile(64, 64, 128, 4, 4), Tile(64, 64, 64, 4, 5)),
    *(Tile(16, 64, 128, 4, 5), Tile(16, 32, 256, 4, 4), Tile(32, 64, 128, 4, 5), Tile(64, 32, 128, 4, 5)),
    *(Tile(128, 32, 64, 4, 4), Tile(128, 16, 32, 4, 4), Tile(32, 32, 32, 2, 4), Tile(16, 16, 32, 1, 4)),
)


def tiles_for(problem: Problem) -> tuple[Tile, ...]:
    """The tiles that Triton is autotuned over for a problem's class."""
    if problem.itemsize == 2:
        return TENSOR_TILES
    if problem.precision == "tf32":
        return tuple(replace(tile, BK=max(tile.BK // 2, 16)) for tile in TENSOR_TILES)
    return TILES


@dataclass(frozen=True, slots=True)
class Order:
    """What is compiled: a tile for all problems of a class, of how they are stored, and of what sizes have in common.

    As Triton does, sizes that are 1 become constants, and of others it is known whether 16 divides them.
    """

    tile: Tile
    dtype: str
    trans_a: bool
    trans_b: bool
    even_k: bool
    ones: tuple[str, ...]
    multiples: tuple[str, ...]
    architecture: int
    precision: str = "ieee"

    @property
    def signature(self) -> dict[str, str]:
        """The type of every parameter of the kernel."""
        pointers = dict.fromkeys(OPERANDS, "*" + TYPES[self.dtype])
        sizes = {name: "constexpr" if name in self.ones else "i32" for name in SIZES}
        types = ("*fp64" if self.dtype == "float64" else "*fp32", "*i32")
        scratch = dict(zip(SCRATCH, types, strict=True)) if self.tile.splits > 1 else {}
        return pointers | sizes | scratch | dict.fromkeys(self.constants, "constexpr")

    @property
    def constants(self) -> dict[str, int | bool | str]:
        """The values of the parameters that are none at run time."""
        tile = {name: getattr(self.tile, name) for name in ("BM", "BN", "BK", "GROUP")}
        stored = {"TRANS_A": self.trans_a, "TRANS_B": self.trans_b, "EVEN_K": self.even_k}
        return dict.fromkeys(self.ones, 1) | tile | stored | {"PRECISION": self.precision}

    @property
    def divisible(self) -> tuple[int, ...]:
        """The places of the parameters that 16 divides; operands are aligned."""
        names = (*OPERANDS, *SIZES, *SCRATCH)
        scratch = SCRATCH if self.tile.splits > 1 else ()
        return tuple(names.index(name) for name in (*OPERANDS, *self.multiples, *scratch))

    @property
    def compiled_as(self) -> Order:
        """The order with the same binary: how many slices there are is known at run time alone."""
        return replace(self, tile=replace(self.tile, splits=2)) if self.tile.splits > 1 else self


def orders(problem: Problem, architecture: str, tiles: Sequence[Tile] = ()) -> list[Order]:
    """The binaries for a problem on an architecture such as sm_90, one a tile, by default its class's."""
    sizes = {name: getattr(problem, name) for name in SIZES}
    ones = tuple(name for name, size in sizes.items() if size == 1)
    multiples = tuple(name for name, size in sizes.items() if size % MULTIPLE == 0)
    stored = problem.dtype, problem.trans_a, problem.trans_b
    target, precision = int(architecture.removeprefix("sm_")), PRECISIONS[problem.precision]
    return [
        Order(tile, *stored, problem.k % tile.BK == 0, ones, multiples, target, precision)
        for tile in tiles or tiles_for(problem)
    ]


@dataclass(frozen=True, slots=True)
class Cubin:
    """A binary on disk and what a launch of it takes: threads, shared bytes, and pointers that Triton adds at the end.

    `reason` says why there is none.
    """

    order: Order
    path: Path
    threads: int = 0
    shared_bytes: int = 0
    hidden: int = 0
    reason: str | None = None


def installed() -> str | None:
    """Triton's version, or None where it is not installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def compile_all(wanted: Iterable[Order], cache_dir: Path) -> dict[Order, Cubin]:
    """Compile every order that the cache does not have, on all cores; needs no GPU."""
    places = {order: place(order, cache_dir) for order in wanted}
    own = missing(places)
    if own:
        cores = min(len(os.sched_getaffinity(0)), len(own))
        with compilers(cores) as pool:
            list(pool.map(compile_one, own.values(), own))
    return {order: read(order, path) for order, path in places.items()}


def place(order: Order, cache_dir: Path) -> Path:
    """Where an order's binary is, or will be; what is known of it lies beside."""
    return cache_dir / "triton" / f"{_key(order)}.cubin"


def missing(places: Mapping[Order, Path]) -> dict[Path, Order]:
    """The orders that are to be compiled, each by its place: some have the same binary."""
    return {path: order for order, path in places.items() if binary_cache.read(path) is None}


@contextmanager
def compilers(count: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes that compile, with a folder of their own that Triton keeps things in."""
    with TemporaryDirectory() as own, ProcessPoolExecutor(count, get_context("spawn"), _begin, (own,)) as pool:
        yield pool


def _key(order: Order) -> str:
    return binary_cache.name(KERNEL.read_text(encoding="utf-8"), installed() or "", repr(order.compiled_as))


def _begin(folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = folder  # read when Triton is imported


def read(order: Order, path: Path) -> Cubin:
    """The binary of an order that was compiled."""
    return Cubin(order, path, **(binary_cache.read(path) or {"reason": "the binary was changed"}))


def compile_one(order: Order, path: Path) -> None:
    """In a process of the pool: put the binary and what is known of it in their places."""
    try:
        binary, facts = _compiled(order)
    except Exception as error:  # noqa: BLE001  whatever Triton cannot compile is a reason
        binary, facts = b"", {"reason": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    binary_cache.write(path, binary, facts)


def _compiled(order: Order) -> tuple[bytes, dict[str, Any]]:
    import triton  # noqa: PLC0415  optional, and slow to import
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    from benchmarks.kernels.peers import triton_kernel  # noqa: PLC0415

    divisible = {(place,): [["tt.divisibility", MULTIPLE]] for place in order.divisible}
    kernel = getattr(triton_kernel, order.tile.entry)
    source = triton.compiler.ASTSource(kernel, order.signature, order.constants, divisible)
    options = {"num_warps": order.tile.warps, "num_stages": order.tile.stages}
    made = triton.compile(source, target=GPUTarget("cuda", order.architecture, 32), options=options)
    scratch = [name for name in ("global_scratch_size", "profile_scratch_size") if getattr(made.metadata, name, 0)]
    if scratch:
        return b"", {"reason": f"wants scratch memory: {', '.join(scratch)}"}
    head = made.asm["ptx"].partition(".entry")[2].partition(")")[0]
    passed = sum(kind != "constexpr" for kind in order.signature.values())
    hidden = len(re.findall(r"\.param", head)) - passed
    threads = 32 * int(made.metadata.num_warps)
    return made.asm["cubin"], {"threads": threads, "shared_bytes": int(made.metadata.shared), "hidden": hidden}


@dataclass(frozen=True)
class TritonFunction:
    """A binary that is launched as CuPy's functions are; grid and block are its own.

    `scratch` are the partial sums of slices of k, and their counters.
    """

    function: Any
    cubin: Cubin
    problem: Problem
    programs: int = 0
    scratch: tuple[Buffer, ...] = ()

    @property
    def grid(self) -> tuple[int, int]:
        """Programs: the tiles of C, or as many as stay, and the batch, or the slices of k."""
        tile, problem = self.cubin.order.tile, self.problem
        tiles = tiles_of(tile, problem)
        return (min(tiles, self.programs), 1) if tile.persistent else (tiles, max(problem.batch, tile.splits))

    def arguments(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """What the binary takes, of A, B, C, m, n, k: sizes of 1 are in it, and what Triton added is null."""
        sizes: Mapping[str, Any] = dict(zip(SIZES, given[3:6], strict=True))
        passed = [np.int32(size) for name, size in sizes.items() if name not in self.cubin.order.ones]
        scratch = [np.uint64(int(each.handle.ptr) + each.offset) for each in self.scratch]
        return *given[:3], *passed, *scratch, *[np.uint64(0)] * self.cubin.hidden

    def __call__(self, _grid: Any, _block: Any, given: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Queue one launch on CuPy's current stream."""
        del shared_mem
        arguments = self.arguments(given)
        self.function(self.grid, (self.cubin.threads,), arguments, shared_mem=self.cubin.shared_bytes)


def tiles_of(tile: Tile, problem: Problem) -> int:
    """How many tiles C has."""
    return -(-problem.m // tile.BM) * -(-problem.n // tile.BN)


def load(cubin: Cubin, problem: Problem, backend: Backend) -> TritonFunction:
    """Load a binary onto the current device; raises RuntimeError where the driver refuses it.

    Raises LaunchFailed where there is no memory for what slices of k leave.
    """
    import cupy  # noqa: PLC0415  in a device's child only

    tile = cubin.order.tile
    function = cupy.RawModule(path=str(cubin.path)).get_function(tile.entry)
    function.max_dynamic_shared_size_bytes = cubin.shared_bytes
    if tile.splits == 1:
        return TritonFunction(function, cubin, problem, backend.device.limits.sms)
    sums = backend.allocate(tile.splits * problem.m * problem.n * max(4, problem.itemsize))
    counters = backend.allocate(4 * tiles_of(tile, problem))
    backend.fill(counters, 0)
    return TritonFunction(function, cubin, problem, scratch=(sums, counters))


def told(tile: Tile) -> tuple[tuple[str, int], ...]:
    """A tile as the pairs of a config."""
    return tuple(asdict(tile).items())
