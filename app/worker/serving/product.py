"""One product, from slab to slab, by a kernel whose class was verified in this worker first."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from time import perf_counter
from typing import Any, Final

from app.devices.backend import Backend, Buffer, Operands, Program, WorkerContext, nothing
from app.devices.process import WorkerLink
from app.errors import LaunchFailed
from app.worker.serving import sketch
from app.worker.serving.chunked_transfer import COPYING, transfers_of
from app.worker.serving.device_memory import DeviceBufferCache, TileTransfer, bytes_at
from app.worker.serving.launch_class import COMPILING, built
from app.worker.serving.sketch import DeviceSketch, SketchMaker, SketchRequest
from app.worker.serving.sliced_launch import prepare, sliced
from app.worker.serving.tile_pipeline import TilePipeline, TileWork, run
from app.worker.state import ProgramCache
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device
from kernels.launch import Launch
from kernels.problem import Problem

# Seconds after which no other tile is begun in a call: where others wait for it, and in any case, as who waits for the
# product is told of its progress between two.
TOGETHER: Final = 0.75
LONGEST: Final = 2.0
_KNOWN = 512  # launches whose figures are remembered
NOT_UPLOADED: Final = (None, None)


@dataclass(frozen=True, slots=True)
class MultiplyRequest:
    """A product request: byte offsets of A, B and C in the slab; `launch` None is the vendor's library.

    `keys` of A, B and C are None but for resident matrices, whose copies on the device are used, and kept as long as
    they are within `budget` bytes. Copies of the keys `evict` are dropped first. Of A and B that were uploaded under
    the keys `uploaded`, only what is missing is copied; with a `result_key`, C stays on the device under it, but for
    its first `result_head` bytes, which are copied back. At a launch's first use `allowed` seconds are for its
    compilation, and as many for its verification. A `tile` of a larger product says where its operands lie in place of
    the offsets; if it `has_more`, the caller gives those that are made with it.
    """

    problem: Problem
    launch: Launch | None
    a: int
    b: int
    c: int
    keys: tuple[int | None, int | None, int | None] = (None, None, None)
    budget: int = 0
    evict: tuple[int, ...] = ()
    uploaded: tuple[int | None, int | None] = NOT_UPLOADED
    result_key: int | None = None
    result_head: int = 0
    allowed: float = COMPILING
    tile: TileTransfer | None = None
    has_more: bool = False
    sketch: SketchRequest | None = None

    def __reduce_ex__(self, _: Any) -> tuple[Callable[..., MultiplyRequest], tuple[Any, ...]]:
        """A launch has a kernel's whole text: it is pickled once here, and sent to and unpickled by each child once."""
        launch = pickle.PickleBuffer(_packed(self.problem, self.launch))
        rest = self.keys, self.budget, self.evict, self.uploaded, self.result_key, self.result_head, self.allowed
        return _request, (launch, self.a, self.b, self.c, *rest, self.tile, self.has_more, self.sketch)


@lru_cache(_KNOWN)
def _packed(problem: Problem, launch: Launch | None) -> bytes:
    return pickle.dumps((problem, launch))


@lru_cache(_KNOWN)
def _unpacked(packed: bytes) -> tuple[Problem, Launch | None]:
    problem, launch = pickle.loads(packed)  # noqa: S301 - the parent wrote it
    return problem, launch


def _request(packed: bytes, *rest: Any) -> MultiplyRequest:
    return MultiplyRequest(*_unpacked(packed), *rest)


@dataclass(frozen=True, slots=True)
class MultiplyResult:
    """Seconds of the upload, the kernel and the download.

    `loaded` counts the resident operands that had to be copied; `kept` are the keys there are copies of afterwards.
    `decline_flags` are the kernel's verdict: unless they are 0, C is unchanged. A C that is `on_device` was not copied
    back. `build` is the seconds of compiling and verifying, at a launch's first use. `following` are the results of the
    tiles that were made with it. `sketch` is None unless one was asked for and the device made it.
    """

    h2d: float
    kernel: float
    d2h: float
    loaded: int = 0
    kept: tuple[int, ...] = ()
    decline_flags: int = 0
    on_device: bool = False
    build: float = 0.0
    following: tuple[MultiplyResult, ...] = ()
    sketch: DeviceSketch | None = None

    @property
    def spent(self) -> float:
        """Seconds of all phases, those of the following tiles too."""
        return self.h2d + self.kernel + self.d2h + sum(each.spent for each in self.following)

    def __reduce__(self) -> tuple[Callable[..., MultiplyResult], tuple[Any, ...]]:
        """In order, which takes half the time that members by name take."""
        return MultiplyResult, (
            self.h2d,
            self.kernel,
            self.d2h,
            self.loaded,
            self.kept,
            self.decline_flags,
            self.on_device,
            self.build,
            self.following,
            self.sketch,
        )


def multiply(held: WorkerContext, link: WorkerLink, request: MultiplyRequest) -> MultiplyResult:
    """Copy A and B to the device, launch, copy C back; raises WrongResult if the kernel's class fails its check.

    If the device is out of memory, cached buffers that this product does not need are evicted.
    """
    cache = buffer_cache_of(held)
    if request.tile is not None:
        held.state(TilePipeline).take_over(cache, request.tile)
    if request.evict:
        forget(held, link, request.evict)
    if request.tile is not None:
        return _multiply_tiles(held, link, request)
    program, build = _program(held, link, request)
    asked = request.sketch
    maker = None if asked is None else sketch.prepared(held, link, request.problem, asked, request.allowed)
    given = _Built(program, build, maker)
    with link.lease(deadline(held.backend, request), last=True):
        try:
            return _made(held, cache, request, given)
        except LaunchFailed as error:
            if error.facts.get("fatal", True) or not _made_room(held, request, request.keys):
                raise
        return _made(held, cache, request, given)


def _multiply_tiles(held: WorkerContext, link: WorkerLink, request: MultiplyRequest) -> MultiplyResult:
    """The same for a tile and those that follow it."""
    program, build = _program(held, link, request)
    if request.tile is not None and request.tile.slices:
        prepare(held, link, request.problem, request.allowed)
    tiles = _GivenTiles(held, link, request, program)
    with link.lease(deadline(held.backend, request), last=True):
        try:
            made = _tiles_made(held, link, tiles)
        except LaunchFailed as error:
            needed = () if request.tile is None else request.tile.needed
            if error.facts.get("fatal", True) or not _made_room(held, request, needed):
                raise
            made = _tiles_made(held, link, tiles)
    return replace(made, build=build)


def _made_room(held: WorkerContext, request: MultiplyRequest, needed: Collection[int | None]) -> bool:
    """Drop what the device holds for others; whether that was anything."""
    copies, transfers, tiles = buffer_cache_of(held), transfers_of(held), held.state(TilePipeline)
    return any((copies.spare(needed), transfers.spare(request.uploaded), tiles.spare()))


def forget(held: WorkerContext, link: WorkerLink, keys: tuple[int, ...]) -> tuple[int, ...]:
    """Drop the device copies of deleted matrices; returns the keys that have copies left."""
    del link
    cache = buffer_cache_of(held)
    cache.forget(keys)
    transfers_of(held).forget(keys)
    held.state(TilePipeline).forget(keys)
    return cache.keys


def buffer_cache_of(held: WorkerContext) -> DeviceBufferCache:
    """The device copies that this child keeps."""
    return held.state(DeviceBufferCache)


def _program(held: WorkerContext, link: WorkerLink, request: MultiplyRequest) -> tuple[Program | None, float]:
    """The program of a request, None for the vendor's library, and the seconds that its first use took."""
    return (None, 0.0) if request.launch is None else built(held, link, request.launch, request.allowed)


class _GivenTiles:
    """The tiles of a call: the first, and those that the caller gives when they are wanted, while it is made."""

    def __init__(self, held: WorkerContext, link: WorkerLink, first: MultiplyRequest, program: Program | None) -> None:
        self._held, self._link, self._has_more = held, link, first.has_more
        self._allowed: list[float] = []  # seconds of each
        self._works: list[TileWork] = []
        self._add(first, program)

    def __iter__(self) -> Iterator[TileWork]:
        """Each tile in turn, from the first one on; those that are known are not asked for again."""
        number = 0
        while number < len(self._works) or self._has_more:
            if number == len(self._works):
                self._ask()
            yield from self._works[number:]
            number = len(self._works)

    def begin(self, number: int) -> None:
        """A tile is about to be made, while the one before may run still; raises CallStopped."""
        if number:
            self._link.offer(self._allowed[number - 1] + self._allowed[number])

    def _ask(self) -> None:
        """Ask for others, up to one whose launch is not built: the device would wait meanwhile."""
        requests: tuple[MultiplyRequest, ...] = self._link.more() or ()
        cache, self._has_more = self._held.state(ProgramCache), bool(requests)
        for request in requests:
            program = None if request.launch is None else cache.find(request.launch)
            if program is None:
                self._has_more = False
                break
            self._add(request, program)

    def _add(self, request: MultiplyRequest, program: Program | None) -> None:
        if request.tile is not None:
            made = sliced(self._held, request.launch, program, request.tile)
            self._works.append(TileWork(request.problem, request.launch, program, request.tile, made))
            self._allowed.append(deadline(self._held.backend, request))


def _tiles_made(held: WorkerContext, link: WorkerLink, tiles: _GivenTiles) -> MultiplyResult:
    """Make a tile and those that follow it; raises LaunchFailed, and CallStopped between two."""
    cache = buffer_cache_of(held)

    def goes_on(seconds: float) -> bool:
        return seconds < (TOGETHER if link.is_waited_for else LONGEST)

    made = held.state(TilePipeline).make(held, cache, tiles, tiles.begin, goes_on)
    first, *more = (MultiplyResult(each.h2d, each.kernel, each.d2h, decline_flags=each.declined) for each in made)
    return replace(first, kept=cache.keys, following=tuple(more))


@dataclass(frozen=True, slots=True)
class _Built:
    """What a product is made with: its program, the seconds that this took, and what makes its sketch, if asked."""

    program: Program | None
    build: float
    sketch: SketchMaker | None


def _made(held: WorkerContext, cache: DeviceBufferCache, request: MultiplyRequest, given: _Built) -> MultiplyResult:
    problem, backend = request.problem, held.backend
    key_a, key_b, key_c = request.keys
    c = backend.allocate(problem.c_bytes)
    started = perf_counter()
    loaded = len({key_a, key_b} - {None, *cache.keys})
    a = _sent(held, request, 0) or _operand(held, cache, request, key_a, request.a, problem.a_bytes)
    b = _sent(held, request, 1) or _operand(held, cache, request, key_b, request.b, problem.b_bytes)
    copied = perf_counter()
    operands, maker = Operands(a, b, c), given.sketch
    if maker is not None:
        maker.begin(operands)
    begun = perf_counter()
    meanwhile = nothing if maker is None else maker.compute
    declined = run(backend, given.program, request.launch, problem, operands, meanwhile)
    launched = perf_counter()
    if declined:
        return MultiplyResult(copied - started, launched - begun, 0.0, loaded, cache.keys, declined, build=given.build)
    made_sketch = None if maker is None else maker.end()
    sketched = perf_counter()
    if request.uploaded != NOT_UPLOADED:
        transfers_of(held).forget(request.uploaded)
    back = problem.c_bytes if request.result_key is None else request.result_head
    if back:
        backend.download(c.window(0, back), bytes_at(held, request.c, back))
    if request.result_key is not None:
        transfers_of(held).keep_result(request.result_key, c)
    spent = MultiplyResult(
        copied - started, launched - begun, perf_counter() - sketched, loaded, on_device=request.result_key is not None
    )
    if key_c is not None and cache.make_room(problem.c_bytes, request.budget, request.keys):
        cache.put(key_c, c)
    return replace(spent, kept=cache.keys, build=given.build, sketch=made_sketch)


def _sent(held: WorkerContext, request: MultiplyRequest, which: int) -> Buffer | None:
    """An operand that came to the device ahead of its product, if it did."""
    if request.uploaded[which] is None:
        return None
    offset, nbytes = ((request.a, request.problem.a_bytes), (request.b, request.problem.b_bytes))[which]
    return transfers_of(held).whole(held.backend, request.uploaded[which], bytes_at(held, offset, nbytes))


def _operand(
    held: WorkerContext, cache: DeviceBufferCache, request: MultiplyRequest, key: int | None, offset: int, nbytes: int
) -> Buffer:
    """An operand on the device: the copy that is kept, or a fresh one."""
    copy = cache.copy(key)
    if copy is not None:
        return copy
    may_stay = key is not None and cache.make_room(nbytes, request.budget, request.keys)
    fresh = held.backend.upload(bytes_at(held, offset, nbytes))
    if key is not None and may_stay:
        cache.put(key, fresh)
    return fresh


def deadline(backend: Backend, request: MultiplyRequest) -> float:
    """Seconds after which the launch is taken for hung: max(2, 10 x the model's prediction), and the copies' time."""
    ahead = sum(each.nbytes for each in request.tile.following) / COPYING if request.tile else 0.0
    return _deadline(request.problem, request.launch, backend.device) + ahead


@lru_cache(_KNOWN)
def _deadline(problem: Problem, launch: Launch | None, device: Device) -> float:
    naive = CATALOGUE["naive"]
    kernel = CATALOGUE[launch.kernel] if launch else naive
    config = launch.config if launch else naive.default(problem, device)
    return max(2.0, 10 * predict(kernel, config, problem, device)) + problem.bytes / COPYING
