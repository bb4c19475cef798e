"""A kernel's source as its macros leave it: conditionals decided, the values of -D macros in place of their names.

Macros that the source defines itself stay as they are, for a reader; a compiler makes the same of both texts. Source:
ISO C, 6.10 (preprocessing directives).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_DIRECTIVE: Final = re.compile(r"^\s*#\s*(\w+)\s*(.*)", re.DOTALL)
_DEFINE: Final = re.compile(r"^(\s*#\s*define\s+)(\w+)(\(?)")
# What is no code is taken whole, so that no name in it is replaced.
_WORD: Final = re.compile(
    r'(?P<other>"(?:\\.|[^"\\])*+(?:"|\\?\Z)|//.*|/\*.*?(?:\*/|\Z))|(?P<word>\b[A-Za-z_]\w*\b)', re.DOTALL
)
_COMMENT: Final = re.compile(r"//.*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TOKEN: Final = re.compile(r"\s*(?:(\d+)[uUlL]*|([A-Za-z_]\w*)|(\|\||&&|[=!<>]=|<<|>>|[-+*/%<>!()&|^]))")
_DEEPEST: Final = 32  # macros in macros
_BINARY: Final[Mapping[str, tuple[int, Callable[[int, int], int]]]] = {
    "||": (1, lambda one, other: int(bool(one or other))),
    "&&": (2, lambda one, other: int(bool(one and other))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
    "<": (7, operator.lt),
    ">": (7, operator.gt),
    "<=": (7, operator.le),
    ">=": (7, operator.ge),
    "<<": (8, operator.lshift),
    ">>": (8, operator.rshift),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, operator.floordiv),
    "%": (10, operator.mod),
}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line that stays, and its number in the source as it is written."""

    number: int
    text: str


def preprocessed(text: str, macros: Mapping[str, str], predefined: Mapping[str, str]) -> tuple[SourceLine, ...]:
    """The lines that stay with the -D `macros` of a build; `predefined` are the compiler's own, which stay as names.

    Raises ValueError for a condition that is none.
    """
    conditions, found = _Conditions({**macros, **predefined}), []
    for number, lines in _logical(text):
        directive = _DIRECTIVE.match("\n".join(lines).replace("\\\n", " "))
        if directive and conditions.decides(directive.group(1), _COMMENT.sub(" ", directive.group(2))):
            continue
        if not conditions.active:
            continue
        if directive:
            conditions.define(lines)
        for place, line in enumerate(lines):
            found.append(SourceLine(number + place, _replaced(line, macros, is_first=place == 0)))
    return tuple(line for before, line in zip((None, *found), found, strict=False) if _stays(before, line))


def _stays(before: SourceLine | None, line: SourceLine) -> bool:
    return bool(line.text.strip()) or bool(before and before.text.strip())


def _logical(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines with those that a backslash continues, and the number of the first."""
    held: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        held.append(line)
        if not line.endswith("\\"):
            yield number - len(held) + 1, held
            held = []


def _replaced(line: str, macros: Mapping[str, str], *, is_first: bool) -> str:
    """A line with values in place of names, but for the name that it defines."""
    defined = _DEFINE.match(line) if is_first else None
    start = defined.end() if defined else 0
    return line[:start] + _WORD.sub(lambda one: macros.get(one["word"] or "", one.group()), line[start:])


@dataclass
class _Conditions:
    """Which macros are defined so far, and which conditionals the line at hand is in."""

    values: dict[str, str | None]  # None: a macro with parameters
    open: list[tuple[bool, bool, bool]] = field(default_factory=list)  # outside is active, a branch was, this one is

    @property
    def active(self) -> bool:
        return not self.open or self.open[-1][2]

    def decides(self, name: str, rest: str) -> bool:
        """Whether a directive is of conditionals; follows it."""
        if name in {"if", "ifdef", "ifndef"}:
            outside = self.active
            holds = outside and self._holds(name, rest)
            self.open.append((outside, holds, holds))
        elif name in {"elif", "else"}:
            outside, was, _ = self.open.pop()
            holds = outside and not was and (name == "else" or self._holds("if", rest))
            self.open.append((outside, was or holds, holds))
        elif name == "endif":
            self.open.pop()
        else:
            return False
        return True

    def define(self, lines: list[str]) -> None:
        """Follow a definition."""
        text = " ".join(line.removesuffix("\\") for line in lines)
        if found := _DEFINE.match(text):
            self.values[found[2]] = None if found[3] else _COMMENT.sub(" ", text[found.end() :])
        elif undefined := re.match(r"^\s*#\s*undef\s+(\w+)", text):
            self.values.pop(undefined[1], None)

    def _holds(self, name: str, rest: str) -> bool:
        if name == "if":
            return bool(_Expression(rest, self.values).value())
        return (rest.strip() in self.values) is (name == "ifdef")


class _Expression:
    """An integer constant expression; a name that is no macro is 0."""

    def __init__(self, text: str, macros: Mapping[str, str | None], depth: int = 0) -> None:
        self._text, self._macros, self._depth = text, macros, depth
        self._tokens = self._split(text)

    @staticmethod
    def _split(text: str) -> list[str]:
        tokens, place, text = [], 0, text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"{text} is no condition that is understood")
            tokens.append(found[1] or found[2] or found[3])
            place = found.end()
        return tokens[::-1]

    def value(self) -> int:
        """The value of the whole."""
        found = self._above(0)
        if self._tokens:
            raise ValueError(f"{self._text} is no condition that is understood")
        return found

    def _above(self, least: int) -> int:
        """What binds at least so tightly."""
        left = self._unary()
        while self._tokens and _BINARY.get(self._tokens[-1], (-1, None))[0] >= max(least, 1):
            rank, act = _BINARY[self._tokens.pop()]
            left = int(act(left, self._above(rank + 1)))
        return left

    def _unary(self) -> int:
        one = self._tokens.pop() if self._tokens else ""
        if one == "!":
            return int(not self._unary())
        if one == "-":
            return -self._unary()
        if one == "(":
            found = self._above(0)
            self._expect(")")
            return found
        if one == "defined":
            return self._defined()
        return int(one) if one.isdigit() else self._named(one)

    def _defined(self) -> int:
        enclosed = self._tokens[-1] == "("
        if enclosed:
            self._tokens.pop()
        name = self._tokens.pop()
        if enclosed:
            self._expect(")")
        return int(name in self._macros)

    def _named(self, name: str) -> int:
        value = self._macros.get(name, "0")
        if not name.isidentifier() or value is None or self._depth > _DEEPEST:
            raise ValueError(f"{self._text} is no condition that is understood")
        return _Expression(value, self._macros, self._depth + 1).value()

    def _expect(self, one: str) -> None:
        if not self._tokens or self._tokens.pop() != one:
            raise ValueError(f"{self._text} is no condition that is understood")
