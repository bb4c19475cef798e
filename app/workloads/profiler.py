"""Chrome traces of torch.profiler with record_shapes=True: products by operands, and the kernels that made them."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import InvalidWorkload
from app.workloads.counted import ProductCounter, Workload, problem_of, shortened
from app.workloads.json_events import ObjectScanner, members
from app.workloads.options import ReadOptions
from kernels.problem import Problem

# Where an operation's A and B stand among its inputs. Whatever contains these, as aten::linear does, is not counted.
_OPERANDS: Final = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
_OTHERS: Final = ("aten::_scaled_mm", "aten::_grouped_mm")
_WANTED: Final = re.compile(rb'"aten::(?:mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm)"|"kernel"')
_DTYPES: Final = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_MOST_EVENTS: Final = 4_000_000  # of products, and of kernels
_MOST_KINDS: Final = 2**16  # of operands, of names
_NO_SHAPES: Final = "the trace has no shapes: make it with torch.profiler.profile(record_shapes=True)"
_MOST_IDS: Final = 2**53


class _Names:
    """Numbers of names, and of whatever else repeats."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name; what is over the limit shares the last one's."""
        found = self._numbers.get(name)
        if found is None:
            found = min(len(self._numbers), _MOST_KINDS)
            if found < _MOST_KINDS:
                self._numbers[name] = found
        return found

    def all(self) -> list[str]:
        """The names by their numbers."""
        return [*self._numbers, "others"]


class _Trace:
    """What is kept of a trace, a few bytes an event: calls of products, and times of kernels."""

    def __init__(self, options: ReadOptions, counter: ProductCounter) -> None:
        self._options, self._counter = options, counter
        self._problems: dict[str, int | None] = {}
        self._told: list[Problem] = []
        self._operations: list[str] = []
        self._threads, self._kernels = _Names(), _Names()
        self.call_problem, self.call_thread, self.call_id = array("i"), array("i"), array("q")
        self.call_start, self.call_ms = array("d"), array("d")
        self.kernel_id, self.kernel_name, self.kernel_ms = array("q"), array("i"), array("d")
        self.shapeless = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event; what is of no use is dropped. Raises InvalidWorkload for more than a trace has."""
        category, name = event.get("cat"), event.get("name")
        if event.get("ph") != "X" or not isinstance(name, str):
            return
        if category == "kernel" and isinstance(place := _id_of(event), int):
            self.kernel_id.append(place)
            self.kernel_name.append(self._kernels.number(shortened(name)))
            self.kernel_ms.append(_milliseconds(event.get("dur")))
        elif category == "cpu_op" and (name in _OPERANDS or name in _OTHERS):
            self._take_call(name, event)
        if max(len(self.kernel_id), len(self.call_id)) > _MOST_EVENTS:
            raise InvalidWorkload(f"the trace has more than {_MOST_EVENTS} products or kernels", limit=_MOST_EVENTS)

    def _take_call(self, name: str, event: Mapping[str, Any]) -> None:
        args = event.get("args")
        told = [members(args, each) for each in ("Input Dims", "Input type", "Input Strides")]
        if told[0] is None:
            self.shapeless += 1
            return
        number = self._number(name, told)
        if number is None:
            return
        self.call_problem.append(number)
        self.call_thread.append(self._threads.number(f"{event.get('pid')} {event.get('tid')}"))
        self.call_id.append(_id_of(event) or 0)
        self.call_start.append(_milliseconds(event.get("ts")))
        self.call_ms.append(_milliseconds(event.get("dur")))

    def _number(self, name: str, told: Sequence[Any]) -> int | None:
        """The number of the call's problem; None where it is none here, which is counted."""
        key = f"{name} {told}"
        number = self._problems.get(key)
        if number is not None:
            return number
        reason = ""
        try:
            problem = _problem(name, told[0], told[1], told[2], self._options)
        except ValueError as error:
            reason = str(error)
        if len(self._problems) >= _MOST_KINDS:
            raise InvalidWorkload(f"the trace has more than {_MOST_KINDS} kinds of operands", limit=_MOST_KINDS)
        if reason:
            self._counter.skip(name, reason)
            self._problems[key] = None
            return None
        self._problems[key] = number = len(self._told)
        self._told.append(problem)
        self._operations.append(name)
        return number

    def count(self) -> None:
        """Count what was taken: calls that contain no other call, each with the time of its kernels, or its own."""
        if self.shapeless and not len(self._told):
            raise InvalidWorkload(_NO_SHAPES)
        if self.shapeless:
            self._counter.skip("products without shapes", _NO_SHAPES, self.shapeless)
        if not len(self.call_id):
            return
        starts, durations = np.frombuffer(self.call_start), np.frombuffer(self.call_ms)
        problems, ids = np.frombuffer(self.call_problem, np.int32), np.frombuffer(self.call_id, np.int64)
        leaves = _leaves(np.frombuffer(self.call_thread, np.int32), starts, durations)
        problems, ids, durations = problems[leaves], ids[leaves], durations[leaves]
        times, names = self._kernel_times(ids, durations)
        kernels = self._kernels.all()
        order = np.argsort(problems, kind="stable")
        numbers, firsts = np.unique(problems[order], return_index=True)
        for number, mine in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            each = times[mine]
            timed = each[each > 0]
            by_name: dict[str | None, float] = {}
            for name, total in zip(*_sums_by(names[mine], each), strict=True):
                told = self._operations[number] if name < 0 else kernels[name]
                by_name[told] = by_name.get(told, 0.0) + total
            sums = int(mine.size), int(timed.size), float(timed.sum()), float(np.square(timed).sum())
            self._counter.add_calls(self._told[number], *sums, by_name)

    def _kernel_times(
        self, ids: NDArray[np.int64], durations: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Of each call the milliseconds of its kernels and the longest one's name; its own and -1 where it has none."""
        made, spent = np.frombuffer(self.kernel_id, np.int64), np.frombuffer(self.kernel_ms)
        if not made.size:
            return durations, np.full(ids.size, -1, np.int32)
        known, back = np.unique(made, return_inverse=True)
        totals = np.bincount(back, spent, known.size)
        longest = np.zeros(known.size, np.int32)
        order = np.argsort(spent, kind="stable")
        longest[back[order]] = np.frombuffer(self.kernel_name, np.int32)[order]  # the last that is written is longest
        where = np.minimum(np.searchsorted(known, ids), known.size - 1)
        has = known[where] == ids
        return np.where(has, totals[where], 0.0), np.where(has, longest[where], -1)


def read_profiler(stream: BinaryIO, options: ReadOptions) -> Workload:
    """The products of a trace; raises InvalidWorkload."""
    counter = ProductCounter("torch.profiler")
    trace = _Trace(options, counter)
    for text in ObjectScanner(stream).objects():
        if _WANTED.search(text) is not None:
            trace.take(_event(text))
    trace.count()
    return counter.workload()


def _event(text: bytes) -> Mapping[str, Any]:
    """One event; NaN and Infinity, which some profilers write, are read as well."""
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidWorkload(f"an event of the trace is no JSON: {error}: {text[:80]!r}") from error
    return event if isinstance(event, dict) else {}


def _problem(name: str, dims: Any, types: Any, strides: Any, options: ReadOptions) -> Problem:
    """The problem of a call; raises ValueError with the reason why it is none here."""
    if name in _OTHERS:
        raise ValueError("products with scales, or of groups, are no problem here")
    first = _OPERANDS[name]
    try:
        a, b = dims[first : first + 2]
        names = {str(each) for each in types[first : first + 2]}
        stored = (strides or [[], []])[first : first + 2]
        *batches, m, k = a
        n = b[-1]
        sizes = [*map(int, (m, n, k))]
        batch = int(batches[0]) if batches else 1
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError("its operands have no shapes") from error
    dtype = _DTYPES.get(next(iter(names))) if len(names) == 1 else None
    if dtype is None:
        raise ValueError(f"elements of type {', '.join(sorted(names))[:80]} are no problem here")
    trans = [_is_transposed(shape, each) for shape, each in zip((a, b), stored, strict=False)] or [False, False]
    return problem_of((sizes[0], sizes[1], sizes[2]), batch, dtype, options.precision, trans[0], trans[-1])


def _is_transposed(shape: Sequence[int], strides: Any) -> bool:
    """Whether a matrix is stored by columns; what lies in neither way is copied by PyTorch, by rows."""
    if not isinstance(strides, list) or len(strides) != len(shape):
        return False
    (rows, columns), (down, along) = shape[-2:], strides[-2:]
    is_by_rows = (along == 1 or columns == 1) and (down >= columns or rows == 1)
    return bool(not is_by_rows and (down == 1 or rows == 1) and (along >= rows or columns == 1))


def _leaves(
    threads: NDArray[np.int32], starts: NDArray[np.float64], durations: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The calls that contain no other call of their thread: the next to begin begins after their end."""
    order = np.lexsort((-durations, starts, threads))
    ends = (starts + durations)[order]
    contains = np.zeros(order.size, bool)
    if order.size > 1:
        same = threads[order][:-1] == threads[order][1:]
        contains[:-1] = same & (ends[1:] <= ends[:-1]) & (starts[order][1:] < ends[:-1])
    leaves: NDArray[np.int64] = np.sort(order[~contains])
    return leaves


def _sums_by(numbers: NDArray[np.int32], values: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    names, back = np.unique(numbers, return_inverse=True)
    return names.tolist(), np.bincount(back, values, names.size).tolist()


def _milliseconds(micros: Any) -> float:
    return float(micros) / 1e3 if isinstance(micros, int | float) and 0 <= micros < _MOST_IDS else 0.0


def _id_of(event: Mapping[str, Any]) -> int | None:
    """The number that a call shares with its kernels."""
    args = event.get("args")
    found = members(args, "External id")
    found = members(args, "external id") if found is None else found
    return found if isinstance(found, int) and 0 <= found < _MOST_IDS else None
