"""What numpy.matmul says of two operands, and how they travel: from where they lie, copied only where strewn."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewise._dlpack import SupportsDLPack, imported
from tilewise._dtypes import DTYPES, numpy_dtype
from tilewise.models import Matrix
from tilewise.shapes import Problem

Array = NDArray[Any]
# Bytes in one place that are worth an entry of their own in a scattered send; shorter runs are copied together.
WORTHWHILE: Final = 2**16


Operand = ArrayLike | Matrix | SupportsDLPack


@dataclass(frozen=True, slots=True, eq=False)
class StoredOperand:
    """One operand as it is sent: what lies in memory is op(operand), or its transpose where `transposed`.

    A resident one has its `name`; its array then tells only its shape and dtype.
    """

    array: Array
    transposed: bool
    name: str | None = None

    def pieces(self) -> list[memoryview]:
        """Its bytes in the order in which they are sent: views where they lie in runs that are worth it."""
        return [] if self.name else pieces(self.array.swapaxes(-1, -2) if self.transposed else self.array)


@dataclass(frozen=True, slots=True, eq=False)
class OperandPlan:
    """What is asked for to have numpy.matmul's answer: a problem, None if nothing is to be computed, and operands.

    C comes as `made` (its shape as the service makes it), is transposed in its last two where `mirrored`, and then has
    `shape`.
    """

    problem: Problem | None
    a: StoredOperand
    b: StoredOperand
    dtype: np.dtype[Any]
    made: tuple[int, ...]
    shape: tuple[int, ...]
    batch: tuple[int, ...]
    mirrored: bool = False

    @property
    def straight(self) -> bool:
        """Whether the bytes that come are those of the answer, in their order."""
        return not self.mirrored or 1 in self.made[-2:]

    def sizes(self, operand: str) -> tuple[int, int]:
        """Rows and columns of op(A) or op(B), as the service is told of them."""
        problem = self.problem
        if problem is None:
            return 0, 0
        return (problem.m, problem.k) if operand == "A" else (problem.k, problem.n)

    def answer(self, c: Array) -> Array:
        """Give what came the answer's shape, C-contiguous."""
        straight = c if self.straight else c.reshape(self.made).swapaxes(-1, -2)
        return np.ascontiguousarray(straight).reshape(self.shape)


def arrayed(value: Operand) -> Array:
    """Give an operand as an array, not copied where its library can share it; raises TypeError if it is no floats.

    A resident one becomes an array of no memory that has its shape and dtype.
    """
    array = _foreign(value)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"an operand is one of {', '.join(DTYPES)}, got {array.dtype}: convert it first")
    if not array.ndim:
        raise ValueError("an operand has at least one dimension, got a number: multiply by it instead")
    return array


def _foreign(value: Operand) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Matrix):
        return np.broadcast_to(np.empty((), numpy_dtype(value.dtype)), value.shape)
    value = _resolved(value)
    found = imported(value) if isinstance(value, SupportsDLPack) else None
    return np.asarray(value) if found is None else found


def _resolved(value: Any) -> Any:
    """A tensor whose elements are in memory: PyTorch's may say that those there are to be negated or conjugated.

    Its own export does not tell of the former (PyTorch, torch.Tensor.resolve_neg).
    """
    for name in ("resolve_conj", "resolve_neg"):
        resolve = getattr(value, name, None)
        value = resolve() if callable(resolve) else value
    return value


def plan(a: Operand, b: Operand, precision: str = "strict", *, folded: bool = True) -> OperandPlan:
    """Say what two operands make; raises ValueError where they do not fit each other, TypeError if not floats.

    One that is broadcast over a batch is sent once: the batch is then folded into the other's rows, unless `folded` is
    false.
    """
    left, right = arrayed(a), arrayed(b)
    dtype = np.result_type(left.dtype, right.dtype).newbyteorder("=")
    for value in (a, b):
        if isinstance(value, Matrix) and numpy_dtype(value.dtype) != dtype:
            raise TypeError(f"{value.name} is {value.dtype} where the other operand makes the product {dtype}")
    vectors = left.ndim == 1, right.ndim == 1
    left = left[None, :] if vectors[0] else left
    right = right[:, None] if vectors[1] else right
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"inner dimensions disagree: op(A) has {left.shape[-1]} columns, op(B) {right.shape[-2]} rows")
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, *left.shape[-2:-1][vectors[0] :], *right.shape[-1:][vectors[1] :])
    if not prod(batch) * left.size * right.size:
        return OperandPlan(None, StoredOperand(left, False), StoredOperand(right, False), dtype, shape, shape, batch)
    names = tuple(value.name if isinstance(value, Matrix) else None for value in (a, b))
    turned = tuple(isinstance(value, Matrix) and value.transposed for value in (a, b))
    pair = _OperandPair(_as(left, dtype), _as(right, dtype), names, turned, batch, shape)
    return pair.plan(precision, folded)


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    return array if array.dtype == dtype and array.dtype.isnative else array.astype(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class _OperandPair:
    """Two operands of at least two dimensions and one dtype that fit each other, none of them empty."""

    left: Array
    right: Array
    names: tuple[str | None, ...]
    turned: tuple[bool, ...]
    batch: tuple[int, ...]
    shape: tuple[int, ...]

    def plan(self, precision: str, folded: bool) -> OperandPlan:
        """Choose how the batch travels."""
        m, k, n = *self.left.shape[-2:], self.right.shape[-1]
        count = prod(self.batch)
        one_left, one_right = prod(self.left.shape[:-2]) == 1, prod(self.right.shape[:-2]) == 1
        if folded and count > 1 and one_right and not self.names[0]:
            return self._made(_whole(self.left, self.batch), _single(self.right), (count * m, n, k, 1), precision)
        # Sending A once costs copies of B and C where their matrices are to be transposed.
        cheap = n == 1 or m * k > (m + k) * n or self.names[0]
        if folded and count > 1 and one_left and cheap and not self.names[1]:
            return self._mirrored(precision, (count * n, m, k, 1))
        for name, array in zip(self.names, (self.left, self.right), strict=True):
            if name and prod(array.shape[:-2]) != count:
                raise ValueError(
                    f"{name} is resident and has {prod(array.shape[:-2])} matrices for {count}: put it as a batch"
                )
        return self._made(_whole(self.left, self.batch), _whole(self.right, self.batch), (m, n, k, count), precision)

    def _made(self, left: Array, right: Array, sizes: tuple[int, int, int, int], precision: str) -> OperandPlan:
        stacked = sizes[3] == 1 and prod(self.batch) > 1
        a = self._stored(0, left, whole=stacked)
        b = self._stored(1, right, whole=False)
        made = (*self.batch, left.shape[-2], right.shape[-1])
        problem = Problem(*sizes, left.dtype.name, precision, a.transposed, b.transposed)
        return OperandPlan(problem, a, b, left.dtype, made, self.shape, self.batch)

    def _mirrored(self, precision: str, sizes: tuple[int, int, int, int]) -> OperandPlan:
        """C's transpose: B's matrices, transposed and one under another, times A's transpose."""
        rows, columns = _whole(self.right, self.batch).swapaxes(-1, -2), _single(self.left).T
        a = StoredOperand(rows, transposed=False)
        name = self.names[0]
        b = StoredOperand(columns, not self.turned[0], name) if name else lying(columns)
        made = (*self.batch, rows.shape[-2], columns.shape[-1])
        problem = Problem(*sizes, rows.dtype.name, precision, a.transposed, b.transposed)
        return OperandPlan(problem, a, b, rows.dtype, made, self.shape, self.batch, mirrored=True)

    def _stored(self, side: int, array: Array, *, whole: bool) -> StoredOperand:
        """An operand as it is sent; a `whole` one is a stack of rows, which cannot be sent transposed."""
        if self.names[side]:
            return StoredOperand(array, self.turned[side], self.names[side])
        return StoredOperand(array, transposed=False) if whole else lying(array)


def _whole(array: Array, batch: tuple[int, ...]) -> Array:
    return np.broadcast_to(array, (*batch, *array.shape[-2:]))


def _single(array: Array) -> Array:
    return cast("Array", array[(0,) * (array.ndim - 2)])


def lying(array: Array) -> StoredOperand:
    """Give an operand in the orientation in which it can be sent from where it lies; as it is, where both can."""
    turned = array.swapaxes(-1, -2)
    return StoredOperand(array, transposed=_run(array)[1] < WORTHWHILE <= _run(turned)[1] or _better(array, turned))


def _better(array: Array, turned: Array) -> bool:
    return _run(array)[0] > 0 and not _run(turned)[0]


def _run(array: Array) -> tuple[int, int]:
    """How many leading dimensions stand before what lies in one place in C order, and how many bytes that is."""
    lead, run = array.ndim, array.itemsize
    while lead and (array.shape[lead - 1] == 1 or array.strides[lead - 1] == run):
        lead -= 1
        run *= array.shape[lead]
    return lead, run


def pieces(array: Array) -> list[memoryview]:
    """An array's bytes in C order, as views of its memory; copied where they lie in runs too short to be worth it."""
    lead, run = _run(array)
    if not lead:
        return [flat(array)]
    if run < WORTHWHILE:
        return [flat(np.ascontiguousarray(array))]
    return [flat(array[index]) for index in np.ndindex(array.shape[:lead])]


def flat(array: Array) -> memoryview:
    """Give a C-contiguous array's own bytes, not copied."""
    return array.reshape(-1).view(np.uint8).data


def check_out(out: Array | tuple[Array] | None, plan: OperandPlan) -> Array | None:
    """Give the array that an answer is to go to; raises TypeError, ValueError as NumPy does if it cannot."""
    given = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if given is None:
        return None
    if not isinstance(given, np.ndarray):
        raise TypeError(f"out is an array, got {type(given).__name__}")
    if not np.can_cast(plan.dtype, given.dtype, "same_kind"):
        raise TypeError(f"out of {given.dtype} cannot take a product of {plan.dtype}")
    if not _takes(given.shape, plan):
        raise ValueError(f"out has the shape {given.shape}, the product {plan.shape}")
    if not given.flags.writeable:
        raise ValueError("out is read-only")
    return given


def _takes(shape: tuple[int, ...], plan: OperandPlan) -> bool:
    """Tell whether an array of a shape takes the product: broadcast in its batch, or without its first sizes of 1."""
    spare = max(0, len(plan.shape) - len(shape))
    if any(size != 1 for size in plan.shape[:spare]):
        return False
    made, lead = plan.shape[spare:], max(0, len(plan.batch) - spare)
    ends = len(shape) - len(made) + lead
    return shape[ends:] == made[lead:] and np.broadcast_shapes(shape[:ends], made[:lead]) == shape[:ends]


def is_room(out: Array, plan: OperandPlan) -> bool:
    """Tell whether the bytes that come may go straight into `out`."""
    return (
        plan.straight
        and out.shape == plan.shape
        and out.dtype == plan.dtype
        and out.flags.c_contiguous
        and not any(np.may_share_memory(out, stored.array) for stored in (plan.a, plan.b))
    )
