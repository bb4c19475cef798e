"""What NVRTC makes of a build, as PTX, taken apart into statements, and what their words mean (PTX ISA)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from cupy.cuda import compiler

from kernels.kernel import Build

Array = np.ndarray[Any, np.dtype[Any]]
TYPES: Final = {
    "pred": np.bool_, "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64,
    "s64": np.int64, "f32": np.float32, "f64": np.float64, "u16": np.uint16, "s16": np.int16, "b16": np.uint16,
}  # fmt: skip
COMPARE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
BINARY: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.floor_divide, "rem": np.remainder,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
WIDER: Final = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
WARP: Final = 32
LINE: Final = re.compile(r"(?:@(!?)(%?\w+) )?([\w.]+)\s*(.*)")
ROOM: Final = re.compile(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d*)\]")
REGISTER: Final = re.compile(r"\.reg \.(\w+)\s+(%?\w+)(?:<\d+>)?")
SPLIT: Final = re.compile(r",\s*(?![^{\[]*[}\]])")


@cache
def ptx_of(build: Build, architecture: str) -> str:
    """The text of a build's PTX for an architecture such as 90."""
    arch = architecture + "a" * (architecture == "90")
    options = (*(f"-D{name}={value}" for name, value in build.macros), f"-arch=compute_{arch}", "-std=c++17")
    text, _ = compiler._NVRTCProgram(build.text, f"{build.name}.cu", method="ptx").compile(options, None)
    return text if isinstance(text, str) else text.decode()


class Program:
    """One function's statements, where its labels and shared arrays are, and what its registers hold."""

    def __init__(self, text: str) -> None:
        self.code: list[tuple[str, bool, str, list[str]]] = []
        self.labels: dict[str, int] = {}
        self.kinds: dict[str, np.dtype[Any]] = {}
        self.rooms, self.shared_bytes = _rooms(text)
        body = text[text.index("{", text.index(".entry")) + 1 :]
        for statement in re.sub(r"//.*", "", body).replace("\t", " ").replace(";", "\n").split("\n"):
            self._take(statement.lstrip("{ ").strip())

    def _take(self, statement: str) -> None:
        label, register = re.fullmatch(r"(\$\w+):", statement), REGISTER.fullmatch(statement)
        if label:
            self.labels[label.group(1)] = len(self.code)
        elif register:
            self.kinds[register.group(2)] = np.dtype(TYPES[register.group(1)])
        elif statement and not statement.startswith((".", "}")):
            found = LINE.fullmatch(statement)
            assert found, statement
            negated, guard, opcode, operands = found.groups()
            self.code.append((guard or "", bool(negated), opcode, SPLIT.split(operands) if operands else []))

    def kind(self, register: str) -> np.dtype[Any]:
        """What a register holds, as it or its numbered kind was declared."""
        if register not in self.kinds:
            self.kinds[register] = self.kinds[register.rstrip("0123456789")]
        return self.kinds[register]


def _rooms(text: str) -> tuple[dict[str, int], int]:
    """Where arrays in shared memory begin, and how many bytes those have whose sizes are known."""
    rooms, end = {}, 0
    for alignment, name, size in ROOM.findall(text):
        rooms[name] = -(-end // int(alignment)) * int(alignment)
        end = rooms[name] + int(size or 0)
    return rooms, end
