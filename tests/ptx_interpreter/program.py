"""What NVRTC makes of a build, as PTX, taken apart into statements, and what their words mean (PTX ISA)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
from cupy.cuda import compiler

from app.devices.cuda.nvrtc_options import target
from kernels.launch import Build

Array = np.ndarray[Any, np.dtype[Any]]
# What a register of each type is held as; bfloat16 and packed types are bits.
TYPES: Final = {
    "pred": np.bool_, "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16,
    "s16": np.int16, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64,
    "s64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16, "tf32": np.uint32,
    "f16x2": np.uint32, "bf16x2": np.uint32,
}  # fmt: skip
WARP: Final = 32
MOST_THREADS: Final = 1024  # of a block whose text names no fewer
PIECE: Final = re.compile(
    r"\s*(?:([{}])|([\w$%]+):(?!:)|(\.(?:loc|file|section)\b[^\n]*)|([^;{}]+(?:\{[^}]*\}[^;{}]*)*);)"
)
LINE: Final = re.compile(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
ROOM: Final = re.compile(r"(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?")
DEPOT: Final = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]")
DECLARED: Final = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
CLUSTER: Final = re.compile(r"\.reqnctapercluster\s+(\d+)")
THREADS: Final = re.compile(r"\.maxntid\s+(\d+)")
OPERAND: Final = re.compile(r"(?:[^,\[{]|\[[^\]]*\]|\{[^}]*\})+")


@cache
def ptx_of(build: Build, architecture: str) -> str:
    """The text of a build's PTX for an architecture such as 90."""
    macros = (f"-D{name}={value}" for name, value in build.macros)
    options = (*macros, f"-arch={target('sm_' + architecture).replace('sm_', 'compute_')}", "-std=c++17")
    text, _ = compiler._NVRTCProgram(build.text, f"{build.name}.cu", method="ptx").compile(options, None)
    return text if isinstance(text, str) else text.decode()


@cache
def parts(operand: str) -> tuple[str, ...]:
    """The registers of a vector operand, or the one that there is."""
    return tuple(part.strip() for part in operand.strip("{}").split(","))


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction: its guard, its name and modifiers, its operands, and its text."""

    guard: str
    negated: bool
    name: str
    rest: tuple[str, ...]
    operands: tuple[str, ...]

    def __str__(self) -> str:
        guard = f"@{'!' * self.negated}{self.guard} " if self.guard else ""
        return f"{guard}{'.'.join((self.name, *self.rest))} {', '.join(self.operands)}"


@dataclass
class Scope:
    """Braces: where they began, and the names declared within them."""

    first: int
    names: set[str]


class Program:
    """One function's statements, where its labels and shared arrays are, and what its registers hold."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        self.code: list[Statement] = []
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}
        self.kinds: dict[str, np.dtype[Any]] = {}
        self.rooms, self.shared_bytes = _rooms(text)
        depots = DEPOT.findall(text)
        self.rooms |= {name: 0 for name, _ in depots}
        self.local_bytes = max((int(size) for _, size in depots), default=0)
        cluster = CLUSTER.search(text)
        self.cluster = int(cluster.group(1)) if cluster else 1
        most = THREADS.search(text)
        self.most_threads = int(most.group(1)) if most else MOST_THREADS
        entry = text.index(".entry")
        self.parameters = len(re.findall(r"\.param\b", text[entry : text.index("{", entry)]))
        self.narrow = re.search(r"\bst\.(?:\w+\.)*?shared[\w:.]*\.[bus](?:8|16)\b", text) is not None
        self._scopes: list[Scope] = []
        self._wide: list[int] = []
        for piece in _pieces(text[text.index("{", entry) :]):
            self._take(*piece)

    def _take(self, brace: str, label: str, statement: str) -> None:
        if brace == "{":
            self._scopes.append(Scope(len(self.code), set()))
        elif brace == "}":
            self._close(self._scopes.pop())
        elif label:
            self.labels[label] = len(self.code)
            self._scopes[-1].names.add(label)
        elif declared := DECLARED.fullmatch(statement):
            for name in declared.group(2).split(","):
                stem = name.strip().partition("<")[0]
                self.kinds[stem] = np.dtype(TYPES[declared.group(1)])
                self._scopes[-1].names.add(stem)
        elif statement.startswith(".branchtargets"):
            self.tables[next(reversed(self.labels))] = OPERAND.findall(statement.partition(" ")[2].replace(" ", ""))
        elif not statement.startswith("."):
            self._add(statement)

    def _add(self, statement: str) -> None:
        found = LINE.fullmatch(statement)
        assert found, statement
        negated, guard, opcode, operands = found.groups()
        name, *rest = re.split(r"(?<!:)\.", opcode)
        listed = OPERAND.findall(re.sub(r"\s+", "", operands))
        self.code.append(Statement(guard or "", bool(negated), name, tuple(rest), tuple(listed)))

    def _close(self, scope: Scope) -> None:
        """Names of inner braces are theirs alone."""
        if not self._scopes or not scope.names:
            return
        own = re.compile(rf"(?<![\w$%])({'|'.join(map(re.escape, scope.names))})(?=\d*(?![\w$]))")
        suffix = f"@{len(self.code)}@"

        def renamed(text: str) -> str:
            return own.sub(rf"\g<1>{suffix}", text)

        for name in scope.names:
            for names in (self.labels, self.kinds):
                if name in names:
                    names[name + suffix] = names.pop(name)  # type: ignore[assignment]
        for at in range(scope.first, len(self.code)):
            one = self.code[at]
            self.code[at] = replace(one, guard=renamed(one.guard), operands=tuple(map(renamed, one.operands)))

    def wide(self, alignment: Callable[[Statement], int]) -> list[int]:
        """How many threads come to each instruction together."""
        if not self._wide:
            self._wide = [alignment(one) for one in self.code]
        return self._wide

    def kind(self, register: str) -> np.dtype[Any]:
        """What a register holds, as it or its numbered kind was declared."""
        if register not in self.kinds:
            self.kinds[register] = self.kinds[register.rstrip("0123456789")]
        return self.kinds[register]


def _pieces(text: str) -> Iterator[tuple[str, str, str]]:
    """A function's braces, labels and statements, up to its last brace."""
    at, depth = 0, 0
    while found := PIECE.match(text, at):
        brace, label, _, statement = found.groups()
        at = found.end()
        depth += {"{": 1, "}": -1}.get(brace, 0)
        yield brace or "", label or "", " ".join((statement or ".").split())
        if depth == 0:
            return
    raise AssertionError(f"not read: {text[at : at + 80]!r}")


def _rooms(text: str) -> tuple[dict[str, int], int]:
    """Where variables in shared memory begin, and how many bytes come before those whose size the launch says."""
    rooms, end = {}, 0
    found = ROOM.findall(text)
    for is_extern, alignment, kind, name, size in sorted(found, key=lambda each: bool(each[0])):
        rooms[name] = -(-end // int(alignment)) * int(alignment)
        end = rooms[name] + (0 if is_extern else int(size or 1) * np.dtype(TYPES[kind]).itemsize)
    return rooms, end
