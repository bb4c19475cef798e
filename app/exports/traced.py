"""Traced sizes: integers that remember the expressions they were computed by, and which comparisons held.

A kernel's plan is run on them as it is: what it computes becomes the expressions of a manifest, and what it asked on
the way becomes the class of problems for which these are its launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

from app.exports.interpreter import LARGEST, Tree

_PRECEDENCE: Final = {"+": 1, "-": 1, "*": 2}
_UNBOUNDED: Final = 2**256


@dataclass(frozen=True, slots=True)
class Need:
    """What sizes must be like: an expression that must not be negative, and the sentence that says so."""

    tree: Tree
    sentence: str


@dataclass(slots=True)
class Trace:
    """The comparisons of traced sizes, as needs; `because` is said of those that are recorded now."""

    needs: dict[Tree, Need] = field(default_factory=dict)
    because: str = ""

    def need(self, tree: Tree, sentence: str) -> None:
        """Record that an expression must not be negative; one that never is says nothing."""
        if bounds(tree)[0] < 0:
            more = f" ({self.because})" if self.because else ""
            self.needs.setdefault(tree, Need(tree, sentence + more))

    def size(self, name: str, value: int) -> Size:
        """Make a traced size."""
        return Size(value, name, self)


def bounds(tree: Tree) -> tuple[int, int]:
    """What an expression's value is never below and never above, for sizes from 1 to LARGEST."""
    if isinstance(tree, int):
        return tree, tree
    if isinstance(tree, str):
        return 1, LARGEST
    operator, one, other = tree
    return _bounds_of(operator, bounds(one), bounds(other))


def _bounds_of(operator: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    (low, high), (least, most) = left, right
    if operator == "+":
        return low + least, high + most
    if operator == "-":
        return low - most, high - least
    if operator == "min":
        return min(low, least), min(high, most)
    if operator == "max":
        return max(low, least), max(high, most)
    if operator == "*":
        corners = [one * other for one in left for other in right]
        return min(corners), max(corners)
    return (-_UNBOUNDED, _UNBOUNDED) if least < 1 else _quotient_bounds(left, right)


def _quotient_bounds(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    (low, high), (least, most) = left, right
    return -(-low // (most if low > 0 else least)), -(-high // (least if high > 0 else most))


def text(tree: Tree, within: int = 0) -> str:
    """Write an expression."""
    if isinstance(tree, int | str):
        return str(tree) if not isinstance(tree, int) or tree >= 0 else f"(0 - {-tree})"
    operator, left, right = tree
    own = _PRECEDENCE.get(operator)
    if own is None:
        return f"{operator}({text(left)}, {text(right)})"
    written = f"{text(left, own)} {operator} {text(right, own + (operator == '-'))}"
    return f"({written})" if own < within else written


def add(left: Tree, right: Tree) -> Tree:
    """A sum."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    if left == 0 or right == 0:
        return right if left == 0 else left
    if isinstance(right, tuple) and right[:2] == ("-", 0):
        return subtract(left, right[2])
    return ("+", left, right)


def subtract(left: Tree, right: Tree) -> Tree:
    """A difference."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    if left == right:
        return 0
    if right == 0:
        return left
    if isinstance(right, tuple) and right[:2] == ("-", 0):
        return add(left, right[2])
    return ("-", left, right)


def multiply(left: Tree, right: Tree) -> Tree:
    """A product."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if 0 in (left, right):
        return 0
    if left == 1 or right == 1:
        return right if left == 1 else left
    if isinstance(left, tuple) and left[:2] == ("-", 0):
        return subtract(0, multiply(left[2], right))
    if isinstance(right, tuple) and right[:2] == ("-", 0):
        return subtract(0, multiply(left, right[2]))
    return ("*", left, right)


def ceil(left: Tree, right: Tree) -> Tree:
    """A quotient, rounded up."""
    if (isinstance(left, int) and isinstance(right, int)) or left == right:
        return -(-left // right) if isinstance(left, int) and isinstance(right, int) else 1
    if right == 1:
        return left
    for one, other in (left[1:], left[:0:-1]) if isinstance(left, tuple) and left[0] == "*" else ():
        if other == right:
            return one
        if isinstance(other, int) and isinstance(right, int) and other % right == 0:
            return multiply(one, other // right)
    if isinstance(left, tuple) and left[:2] == ("-", 0):
        whole = ceil(left[2], right)
        if not (isinstance(whole, tuple) and whole[0] == "ceil"):
            return subtract(0, whole)
    return ("ceil", left, right)


def _chosen(which: str, left: Tree, right: Tree) -> Tree:
    """The smaller or the larger of two."""
    (low, high), (least, most) = bounds(left), bounds(right)
    if left == right or (low >= most if which == "max" else high <= least):
        return left
    return right if (least >= high if which == "max" else most <= low) else (which, left, right)


class Size:
    """An integer with the expression it was computed by. What is decided by it becomes a need of the trace."""

    __slots__ = ("_modulo", "_trace", "tree", "value")

    def __init__(self, value: int, tree: Tree, trace: Trace, modulo: tuple[Tree, Tree] | None = None) -> None:
        self.value, self.tree, self._trace, self._modulo = value, tree, trace, modulo

    def smaller(self, other: Size | int) -> Size:
        """Give the smaller of two, undecided."""
        return self._made(min(self.value, _value(other)), _chosen("min", self.tree, tree_of(other)))

    def larger(self, other: Size | int) -> Size:
        """Give the larger of two, undecided."""
        return self._made(max(self.value, _value(other)), _chosen("max", self.tree, tree_of(other)))

    def bit_length(self) -> int:
        """Decide between powers of two."""
        bits = self.value.bit_length()
        _ = 2 ** (bits - 1) <= self < 2**bits
        return bits

    def __add__(self, other: Size | int) -> Size:
        return self._made(self.value + _value(other), add(self.tree, tree_of(other)))

    def __radd__(self, other: int) -> Size:
        return self._made(other + self.value, add(other, self.tree))

    def __sub__(self, other: Size | int) -> Size:
        return self._made(self.value - _value(other), subtract(self.tree, tree_of(other)))

    def __rsub__(self, other: int) -> Size:
        return self._made(other - self.value, subtract(other, self.tree))

    def __mul__(self, other: Size | int) -> Size:
        return self._made(self.value * _value(other), multiply(self.tree, tree_of(other)))

    def __rmul__(self, other: int) -> Size:
        return self._made(other * self.value, multiply(other, self.tree))

    def __neg__(self) -> Size:
        return self._made(-self.value, subtract(0, self.tree))

    def __floordiv__(self, other: Size | int) -> Size:
        return _quotient(self, other, self._trace)

    def __rfloordiv__(self, other: int) -> Size:
        return _quotient(other, self, self._trace)

    def __mod__(self, other: Size | int) -> Size:
        rest = self - self // other * other
        return Size(rest.value, rest.tree, self._trace, (self.tree, tree_of(other)))

    def __divmod__(self, other: Size | int) -> tuple[Size, Size]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[Size, Size]:
        whole = other // self
        return whole, other - whole * self

    def __lt__(self, other: Size | int) -> bool:
        return not self >= other

    def __gt__(self, other: Size | int) -> bool:
        return self != 0 if self._modulo is not None and other == 0 else not self <= other

    def __ge__(self, other: Size | int) -> bool:
        return self._at_least(self.value, self.tree, _value(other), tree_of(other))

    def __le__(self, other: Size | int) -> bool:
        return self._at_least(_value(other), tree_of(other), self.value, self.tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | Size) and self._equals(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return not self._equals(0)

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __index__(self) -> int:
        self._equals(self.value)
        return self.value

    def __int__(self) -> int:
        return self.__index__()

    def __str__(self) -> str:
        return str(self.__index__())

    def __truediv__(self, _: object) -> NoReturn:
        raise TypeError("a traced size has no fractions")

    def _made(self, value: int, tree: Tree) -> Size:
        return Size(value, tree, self._trace)

    def _at_least(self, one: int, left: Tree, other: int, right: Tree) -> bool:
        holds = one >= other
        if holds:
            said = f"{text(right)} must be at most {left}" if isinstance(left, int) else _at_least(left, right)
            self._trace.need(subtract(left, right), said)
        else:
            said = f"{text(right)} must be over {left}" if isinstance(left, int) else _below(left, right)
            self._trace.need(subtract(subtract(right, left), 1), said)
        return holds

    def _equals(self, other: Size | int) -> bool:
        left, right = self.tree, tree_of(other)
        holds = self.value == _value(other)
        if isinstance(left, int) and isinstance(right, int):
            return holds
        ahead, behind = subtract(left, right), subtract(right, left)
        least: Tree = ("min", ahead, behind) if holds else ("-", ("max", ahead, behind), 1)
        self._trace.need(0 if ahead == 0 else least, self._same(right, holds))
        return holds

    def _same(self, right: Tree, holds: bool) -> str:
        if self._modulo is not None and right == 0:
            return f"{text(self._modulo[0])} must {'' if holds else 'not '}be a multiple of {text(self._modulo[1])}"
        return f"{text(self.tree)} must {'' if holds else 'not '}be {text(right)}"


def _at_least(left: Tree, right: Tree) -> str:
    return f"{text(left)} must be at least {text(right)}"


def _below(left: Tree, right: Tree) -> str:
    return f"{text(left)} must be less than {text(right)}"


def _quotient(one: Size | int, other: Size | int, trace: Trace) -> Size:
    """A quotient, rounded down."""
    down = subtract(0, ceil(subtract(0, tree_of(one)), tree_of(other)))
    return Size(_value(one) // _value(other), down, trace)


def tree_of(value: Size | int) -> Tree:
    """The expression of a size, traced or not."""
    return value.tree if isinstance(value, Size) else int(value)


def _value(value: Size | int) -> int:
    if not isinstance(value, Size | int):
        raise TypeError(f"a traced size meets {value!r}, which is no integer")
    return value.value if isinstance(value, Size) else value
