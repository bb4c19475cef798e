"""Launches of a manifest: what to queue for a product of given sizes, or why the class of the export leaves it out.

This file travels with exports and needs the standard library alone. An expression has integers, the names m, n, k and
batch, + - *, parentheses, and ceil(a, b), which is a / b rounded up, min(a, b) and max(a, b); nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Union

NAMES: Final = ("m", "n", "k", "batch")
LARGEST: Final = 2**31 - 1  # of each of these
# An expression is a number, a name, or an operator with two of them.
Tree = Union[int, str, tuple[str, "Tree", "Tree"]]  # noqa: UP007 - read by Python 3.9, too

_LONGEST: Final = 65_536  # characters of an expression
_DEEPEST: Final = 100
_WIDEST: Final = 2**63
_TOKEN: Final = re.compile(r"\s*([0-9]{1,19}|[a-z]{1,5}|[-+*(),])")
_FUNCTIONS: Final = ("ceil", "min", "max")


class OutsideClass(ValueError):
    """The sizes are outside the class for which the export was made; the text says which need is not met."""


@dataclass(frozen=True)
class QueuedMap:
    """The arguments of cuTensorMapEncodeTiled, innermost dimension first."""

    operand: str
    offset: int
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class QueuedLaunch:
    """One launch: an argument is the name of an operand's pointer, a 64-bit integer, or a tensor map by value."""

    entry: str
    grid: int
    block: tuple[int, int]
    shared_bytes: int
    arguments: tuple[str | int | QueuedMap, ...]


@dataclass(frozen=True)
class QueuedLaunches:
    """All launches of a product, in order, and the workspace that they share: of it `zeroed` bytes are zero before."""

    launches: tuple[QueuedLaunch, ...]
    workspace_bytes: int
    zeroed_bytes: int


def product(manifest: Mapping[str, Any], m: int, n: int, k: int, batch: int = 1) -> QueuedLaunches:
    """Give the launches of a product; raises OutsideClass with the need that is not met."""
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    for name, size in sizes.items():
        if not 1 <= size <= LARGEST:
            raise OutsideClass(f"{name} must be from 1 to {LARGEST}, and is {size}")
    for need in manifest["needs"]:
        if evaluate(parse(need["not_negative"]), sizes) < 0:
            raise OutsideClass(f"{need['sentence']}; the product is {m} x {n} x {k} x {batch}")
    launches = tuple(_launch(each, sizes) for each in manifest["launches"])
    return QueuedLaunches(launches, _value(manifest["workspace_bytes"], sizes), int(manifest["zeroed_bytes"]))


def _launch(found: Mapping[str, Any], sizes: Mapping[str, int]) -> QueuedLaunch:
    arguments = tuple(_argument(each, sizes) for each in found["args"])
    block = (int(found["block"][0]), int(found["block"][1]))
    return QueuedLaunch(found["entry"], _value(found["grid"][0], sizes), block, int(found["shared_bytes"]), arguments)


def _argument(found: Mapping[str, Any], sizes: Mapping[str, int]) -> str | int | QueuedMap:
    if "pointer" in found:
        return str(found["pointer"])
    if "i64" in found:
        return _value(found["i64"], sizes)
    return QueuedMap(
        operand=found["tensor_map"],
        offset=_value(found["offset"], sizes),
        element=found["element"],
        sizes=tuple(_value(each, sizes) for each in found["dims"]),
        strides=tuple(_value(each, sizes) for each in found["strides_bytes"]),
        box=tuple(map(int, found["box"])),
        swizzle=int(found["swizzle"]),
    )


def _value(text: str, sizes: Mapping[str, int]) -> int:
    return evaluate(parse(text), sizes)


def evaluate(tree: Tree, sizes: Mapping[str, int]) -> int:
    """Give an expression's value; raises OutsideClass where a step of it leaves 64 bits, or divides by less than 1."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sizes[tree]
    operator, left, right = tree
    value = _applied(operator, evaluate(left, sizes), evaluate(right, sizes))
    if not -_WIDEST <= value < _WIDEST:
        raise OutsideClass(f"a size of the launch leaves 64 bits at {value}")
    return value


def _applied(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "min":
        return min(left, right)
    if operator == "max":
        return max(left, right)
    if right < 1:
        raise OutsideClass(f"ceil divides by {right}")
    return -(-left // right)


@lru_cache(maxsize=4096)
def parse(text: str) -> Tree:
    """Read an expression; raises ValueError with the place where it is none."""
    if len(text) > _LONGEST:
        raise ValueError(f"an expression has {len(text)} characters, the limit is {_LONGEST}")
    reader = _ExpressionReader(text)
    tree = reader.sum(0)
    reader.expect("")
    return tree


class _ExpressionReader:
    """Reads an expression, a token at a time."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._token = text, 0, ""
        self._next()

    def sum(self, depth: int) -> Tree:
        if depth > _DEEPEST:
            raise ValueError(f"an expression is nested more than {_DEEPEST} deep")
        tree = self._term(depth)
        while self._token in {"+", "-"}:
            operator = self._next()
            tree = (operator, tree, self._term(depth))
        return tree

    def expect(self, token: str) -> None:
        if self._token != token:
            raise ValueError(f"{token or 'the end'} was expected at character {self._at} of {self._text!r:.200}")
        self._next()

    def _term(self, depth: int) -> Tree:
        tree = self._factor(depth)
        while self._token == "*":  # noqa: S105 - a token of the expression
            self._next()
            tree = ("*", tree, self._factor(depth))
        return tree

    def _factor(self, depth: int) -> Tree:
        token = self._next()
        if token.isdecimal():
            return int(token)
        if token in NAMES:
            return token
        if token == "(":  # noqa: S105 - a token of the expression
            tree = self.sum(depth + 1)
            self.expect(")")
            return tree
        if token not in _FUNCTIONS:
            raise ValueError(f"{token or 'the end'!r} is none of what an expression has: {self._text!r:.200}")
        self.expect("(")
        left = self.sum(depth + 1)
        self.expect(",")
        right = self.sum(depth + 1)
        self.expect(")")
        return (token, left, right)

    def _next(self) -> str:
        """Step on to the next token, and give the one before."""
        before = self._token
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            raise ValueError(f"character {self._at} of an expression is none of its own: {self._text!r:.200}")
        self._token = found.group(1) if found else ""
        self._at = found.end() if found else len(self._text)
        return before
