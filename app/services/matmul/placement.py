"""Which devices make a product, and how its tiles are dealt to several.

Each device has a run of neighbouring tiles, so that it uses most panels twice; one that has made its own takes the last
of the longest run that is left. What a device was to make that failed or is lost goes to the others: a product is pure.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from typing import Final, Literal

from app.devices.fleet import Unit
from app.errors import ChildDied, DeviceError, Invalid, Unsupported
from app.services.best.kernel_order import covering, unemulated
from app.services.best.lookup import BestConfigs
from app.services.matmul.buffers import OperandBuffers, Product, ProductPlan, Tile
from app.services.matmul.tiles.memory import DeviceMemory
from app.services.matmul.tiles.walk import TileWalk
from kernels import CATALOGUE
from kernels.cost_model import predict
from kernels.device import Device
from kernels.problem import Problem

Placement = Literal["auto", "one", "all"]
_LOG: Final = logging.getLogger(__name__)
_PAYS: Final = 0.25  # seconds of one device above which a product is worth several: panels come, and tiles end, in turn
_FEW: Final = 1e9  # flops that no device takes so long for
# Bytes a second that a device's link may have less of: tiles of one device take no less time than the copy of the panel
# that comes meanwhile, which this many times over.
_LINK: Final = 4e10
_MEANWHILE: Final = 1.25
_SEEN: Final = 128  # tiles among which a device's next panels are looked for
_DEATHS: Final = 2  # of a device's process in turn, from outside, after which the others go on without it
# Tiles that a worker is given at once, at most, by the platforms whose copies go on beside launches: it asks for them
# while another is made. At first they are fewer, as those are small and soon made.
_TOGETHER: Final = {"cuda": 8}
Make = Callable[[OperandBuffers, Unit], Product]


class ProductPlanner:
    """Decides which devices make a product; `usable` are those that take products now."""

    def __init__(self, memory: DeviceMemory, best: BestConfigs, usable: Callable[[], Sequence[Unit]]) -> None:
        self._memory, self._best, self._usable = memory, best, usable

    def plan(
        self, problem: Problem, placement: Placement, device_id: str | None, *, resident: bool, arriving: bool
    ) -> ProductPlan:
        """The devices and the tiles of a product, some of whose operands may be `resident`.

        Those that are `arriving` are copied to their device as they come. Raises Invalid where one device is to make it
        and all are, NoDevice, Unsupported and TooLarge.
        """
        if device_id is not None and placement == "all":
            raise Invalid(f"placement is all, and device is {device_id} alone", member="placement")
        tiles = self._memory.tiles(problem)
        if device_id is not None or placement == "one" or len(units := self._alike(problem)) == 1:
            made = tiles if resident or arriving else self._of_one(problem, tiles, device_id)
            return ProductPlan(made, fits=tiles is None)
        if placement == "auto" and tiles is None and (resident or not self._pays(problem, units[0].device)):
            return ProductPlan(tiles)
        shared = self._memory.overlapped(problem, self._side(problem, units[0].device), len(units))
        return ProductPlan(tiles) if shared is None else ProductPlan(shared, units)

    def _of_one(
        self, problem: Problem, tiles: tuple[Tile, ...] | None, device_id: str | None
    ) -> tuple[Tile, ...] | None:
        """Tiles that hide one device's copies behind its products, if these take long; else those it has to have."""
        device = next((unit.device for unit in self._usable() if device_id in {None, unit.device.id}), None)
        if device is None or problem.flops < _FEW:
            return tiles
        if tiles is None and not self._pays(problem, device):
            return tiles
        return self._memory.overlapped(problem, self._side(problem, device))

    def _side(self, problem: Problem, device: Device) -> int:
        """Rows and columns of a tile that takes as long as the copy of a panel of so many."""
        rate = problem.flops / self._predicted(problem, device)
        return ceil(_MEANWHILE * rate * problem.itemsize / (2 * _LINK))

    def _alike(self, problem: Problem) -> tuple[Unit, ...]:
        """The devices that compute a problem as the first of them does, however fast."""
        units = self._usable()
        classes = [_class(problem, unit.device) for unit in units]
        first = next((each for each in classes if each is not None), None)
        return tuple(unit for unit, each in zip(units, classes, strict=True) if each is not None and each == first)

    def _pays(self, problem: Problem, device: Device) -> bool:
        """Whether the model expects that one device takes long."""
        return problem.flops >= _FEW and self._predicted(problem, device) >= _PAYS

    def _predicted(self, problem: Problem, device: Device) -> float:
        """Seconds that a GPU kernel's own model expects one device to take; without one, the bound that all have."""
        launch = self._best.answer(problem, device.id).launch
        kernel = CATALOGUE[launch.kernel]
        if kernel.seconds is not None and device.platform == "cuda":
            return kernel.seconds(launch.config, launch.problem, device)
        return predict(kernel, launch.config, launch.problem, device)


def _class(problem: Problem, device: Device) -> tuple[str, bool, bool] | None:
    """What a device has in common with those that make equal products; None where it makes none."""
    is_emulated = unemulated(problem, device) is None
    try:
        covering(problem if is_emulated else replace(problem, precision="strict"), device)
    except Unsupported:
        return None
    return device.platform, is_emulated, problem.precision != "tf32" or bool(device.limits.tensor_tf32)


@dataclass(frozen=True, slots=True)
class Dealt:
    """A tile by its number, those that its device likely makes `after` it, and whether no other is sure to follow."""

    number: int
    after: tuple[int, ...]
    is_last: bool


class TileQueue:
    """The tiles that are still to be made, dealt to devices by their index; safe from any thread."""

    def __init__(self, tiles: int, devices: int) -> None:
        bounds = [tiles * index // devices for index in range(devices + 1)]
        self._runs = [deque(range(*bounds[index : index + 2])) for index in range(devices)]
        self._back: deque[tuple[int, int]] = deque()  # tiles that were given back, and by whom
        self._next: dict[int, int] = {}  # by device, the tile that is sure to follow
        self._unmade, self._devices = tiles, devices
        self._stopped: BaseException | None = None
        self._changed = threading.Condition()

    def take(self, device: int) -> Dealt | None:
        """A tile; waits where others may still give theirs back. None once all are made, or there was an end."""
        with self._changed:
            while self._unmade and self._stopped is None:
                number = self._pop(device)
                if number is not None:
                    return self._dealt(device, number)
                self._changed.wait()
        return None

    def take_more(self, device: int, most: int) -> list[Dealt]:
        """So many tiles at `most` as are sure to follow the one that was taken last; none after an end."""
        dealt = list[Dealt]()
        with self._changed:
            while len(dealt) < most and device in self._next and self._stopped is None:
                dealt.append(self._dealt(device, self._next.pop(device)))
        return dealt

    def made(self, tiles: int) -> None:
        """Take note that C of so many tiles is there."""
        with self._changed:
            self._unmade -= tiles
            self._changed.notify_all()

    def give_back(self, device: int, numbers: Sequence[int]) -> None:
        """Have tiles made once more, rather by another device."""
        with self._changed:
            self._back.extend((number, device) for number in numbers)
            self._changed.notify_all()

    def put_back(self, device: int, dealt: Sequence[Dealt]) -> None:
        """Take tiles back that were dealt last, and not made: they are dealt to the same device again."""
        with self._changed:
            if not dealt:
                return
            if device in self._next:
                self._runs[device].appendleft(self._next.pop(device))
            self._next[device] = dealt[0].number
            self._runs[device].extendleft(each.number for each in reversed(dealt[1:]))

    def leave(self, device: int, error: DeviceError) -> None:
        """A device makes no more of them; raises why, if there is no other left."""
        with self._changed:
            self._devices -= 1
            if not self._devices:
                raise error
            if device in self._next:
                self._back.append((self._next.pop(device), device))
            self._changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """Deal no more; the first reason is kept."""
        with self._changed:
            self._stopped = self._stopped or error
            self._changed.notify_all()

    def raise_if_stopped(self) -> None:
        """Raise why the product ended early, if it did."""
        if self._stopped is not None:
            raise self._stopped

    def _pop(self, device: int) -> int | None:
        if device in self._next:
            return self._next.pop(device)
        for given in self._back:
            if given[1] != device:
                self._back.remove(given)
                return given[0]
        if self._runs[device]:
            return self._runs[device].popleft()
        longest = max(self._runs, key=len)
        if longest:
            return longest.pop()
        return self._back.popleft()[0] if self._back else None

    def _dealt(self, device: int, number: int) -> Dealt:
        """The next one is sure to follow: those after it may be taken by others."""
        run = self._runs[device]
        after = tuple(islice(run, _SEEN))
        if run:
            self._next[device] = run.popleft()
        return Dealt(number, after, is_last=not after)


class TileMaker:
    """One product in the making, its tiles made by `make` on the devices of its walk."""

    def __init__(self, walk: TileWalk, make: Make) -> None:
        self._walk, self._make, self._units = walk, make, walk.units
        self._queue = TileQueue(len(walk), len(walk.units))
        self._made: list[Product] = []

    def product(self) -> Product:
        """The product; raises what `make` does where no device is left, or the fault is not a device's."""
        if len(self._units) == 1:
            self._work(0)
        else:
            with ThreadPoolExecutor(len(self._units), thread_name_prefix="tiles") as pool:
                for index in range(len(self._units)):
                    pool.submit(copy_context().run, self._work, index)
        self._queue.raise_if_stopped()
        return joined(self._made, len(self._walk))

    def _work(self, index: int) -> None:
        try:
            _DeviceTiles(self._walk, self._queue, self._make, index).make(self._made)
        except BaseException as error:  # noqa: BLE001 - it is raised by `product`, in its caller's thread
            self._queue.stop(error)


class _DeviceTiles:
    """The tiles that one device makes. C of one may be there only once the next is made: that one is `under way`."""

    def __init__(self, walk: TileWalk, queue: TileQueue, make: Make, index: int) -> None:
        self._walk, self._queue, self._make = walk, queue, make
        self._index, self._unit = index, walk.units[index]
        self._in_flight: tuple[Dealt, Product, int] | None = None  # with the generation of the worker that holds its C
        self._deaths, self._most = 0, 1

    def make(self, made: list[Product]) -> None:
        """Make tiles until none is left, or the device takes no more; raises as TileMaker.product."""
        while first := self._queue.take(self._index):
            worker, dealt = self._unit.products.generation, [first]
            is_fed = self._unit.device.platform in _TOGETHER
            more = partial(self._more, dealt) if is_fed else None
            try:
                part = self._make(replace(self._buffers(first), more=more), self._unit)
            except DeviceError as error:
                self._lose(dealt)
                if not self._goes_on(error):
                    _LOG.warning("%s makes no more tiles of a product: %s", self._unit.device.id, error.message)
                    self._queue.leave(self._index, error)
                    return
            else:
                parts = [replace(part, following=()), *part.following]
                self._queue.put_back(self._index, dealt[len(parts) :])
                self._keep(dealt[: len(parts)], parts, worker, made)

    def _more(self, dealt: list[Dealt]) -> list[OperandBuffers]:
        """The buffers of the next tiles, which are added to the `dealt` ones."""
        found = self._queue.take_more(self._index, self._most)
        self._most = min(_TOGETHER[self._unit.device.platform], 2 * self._most)
        dealt += found
        return [self._buffers(each) for each in found]

    def _buffers(self, dealt: Dealt) -> OperandBuffers:
        """The buffers of a tile."""
        return self._walk.buffers(dealt.number, dealt.after, is_last=dealt.is_last)

    def _keep(self, dealt: Sequence[Dealt], parts: Sequence[Product], worker: int, made: list[Product]) -> None:
        """Count what is there now. A worker that was replaced has not copied back what it had to."""
        now, before = self._unit.products.generation, self._in_flight
        if before is not None and before[2] != now:
            self._lose(dealt)
            return
        last = dealt[-1]
        self._deaths, self._in_flight = 0, None if last.is_last else (last, parts[-1], worker)
        done = [*([before[1]] if before else []), *(parts if last.is_last else parts[:-1])]
        made.extend(done)
        self._queue.made(len(done))

    def _lose(self, dealt: Sequence[Dealt]) -> None:
        """Have tiles, and the one whose C was not there yet, made once more."""
        before, self._in_flight = self._in_flight, None
        numbers = [each.number for each in dealt]
        self._queue.give_back(self._index, [*numbers, *([before[0].number] if before else [])])

    def _goes_on(self, error: DeviceError) -> bool:
        """Whether the device, whose process was killed from outside, tries again."""
        self._deaths += 1
        return isinstance(error, ChildDied) and bool(error.facts.get("outside")) and self._deaths <= _DEATHS


def joined(parts: Sequence[Product], tiles: int) -> Product:
    """The product that tiles make: the kernel of most of them, their seconds in all, the precision that errs most."""
    seconds: Counter[str] = Counter()
    for part in parts:
        seconds.update(part.seconds)
    devices = Counter(part.device.id for part in parts)
    usual = Counter((part.device.id, part.kernel, tuple(part.config.items())) for part in parts).most_common(1)[0][0]
    chosen = next(part for part in parts if (part.device.id, part.kernel, tuple(part.config.items())) == usual)
    loosest = next((part.precision for part in parts if part.precision != "strict"), "strict")
    declined = next((part.declined for part in parts if part.declined), None)
    shares = dict(sorted(devices.items())) if len(devices) > 1 else {}
    told = replace(chosen, seconds=dict(seconds), precision=loosest, declined=declined)
    return replace(told, tiles=tiles, devices=shares)
