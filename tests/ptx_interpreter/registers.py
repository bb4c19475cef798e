"""The registers of threads that machine.py runs, and how operands are read and written (PTX ISA, "Operands").

A pointer into shared or local memory, or to a parameter, that is taken as any pointer lies in a window of its own.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kernels.launch import Launch
from tests.ptx_interpreter.program import TYPES, WARP, Array, Program

SHARED_WINDOW: Final = 1 << 40
LOCAL_WINDOW: Final = 1 << 41
PARAMETERS: Final = 1 << 42
MAP_BYTES: Final = 128
ALIGN: Final = 1 << 24  # how far apart blocks' shared memories are, as a cluster sees them


class Registers:
    """What the threads of a cluster's blocks hold; `mask` are those that the instruction at hand is run by."""

    def __init__(self, program: Program, launch: Launch, arguments: tuple[int, ...], first: int) -> None:
        """`first` is the number of the cluster's first block."""
        self.program, self.arguments, self.blocks = program, arguments, program.cluster
        self.per_block, self.threads = launch.threads, launch.threads * self.blocks
        number = np.arange(self.threads, dtype=np.uint32)
        self.lane = number % np.uint32(self.per_block)
        self.rank = (number // np.uint32(self.per_block)).astype(np.int64)
        self.mask, self.full = np.ones(self.threads, np.bool_), True
        self.constants: dict[tuple[str, str], Array] = {}
        self.registers: dict[str, Array] = self._special(launch, first)
        self.step = 1

    def _special(self, launch: Launch, first: int) -> dict[str, Array]:
        wide, lane, rank = np.uint32(launch.block[0]), self.lane, self.rank.astype(np.uint32)
        bit = np.left_shift(np.uint32(1), lane % np.uint32(WARP))
        found = {
            "%tid.x": lane % wide,
            "%tid.y": lane // wide,
            "%ctaid.x": np.uint32(first) + rank,
            "%laneid": lane % np.uint32(WARP),
            "%warpid": lane // np.uint32(WARP),
            "%cluster_ctaid.x": rank,
            "%cluster_ctarank": rank,
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - np.uint32(1),
            "%lanemask_le": bit | (bit - np.uint32(1)),
            "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
            "%lanemask_ge": ~(bit - np.uint32(1)),
        }
        fixed = {
            "%tid.z": 0,
            "%ctaid.y": 0,
            "%ctaid.z": 0,
            "%ntid.x": launch.block[0],
            "%ntid.y": launch.block[1],
            "%ntid.z": 1,
            "%nctaid.x": launch.grid,
            "%nctaid.y": 1,
            "%nctaid.z": 1,
            "%clusterid.x": first // self.blocks,
            "%nclusterid.x": launch.grid // self.blocks,
            "%cluster_nctarank": self.blocks,
            "%cluster_nctaid.x": self.blocks,
            "%dynamic_smem_size": launch.shared_bytes,
        }
        return found | {name: np.full(self.threads, value, np.uint32) for name, value in fixed.items()}

    def value(self, operand: str, kind: str) -> Array:
        """An operand as the instruction's type sees it."""
        held = self.registers.get(operand)
        if held is None:
            return self._fixed(operand, kind)
        wanted = np.dtype(TYPES[kind])
        if held.itemsize > wanted.itemsize:  # the lower part of a wide one
            held = np.ascontiguousarray(held.view(wanted).reshape(self.threads, -1)[:, 0])
        return held if held.dtype == wanted else held.view(wanted)

    def _fixed(self, operand: str, kind: str) -> Array:
        """An operand that is the same for all and always, or a register that nothing was put in yet: all ones."""
        if (operand, kind) not in self.constants:
            self.constants[operand, kind] = np.repeat(self._constant(operand, np.dtype(TYPES[kind])), self.threads)
        return self.constants[operand, kind]

    def _constant(self, operand: str, wanted: np.dtype[Any]) -> Array:
        if operand.startswith(("0d", "0f", "0D", "0F")):
            exact = np.float64 if operand[1] in "dD" else np.float32
            return np.frombuffer(bytes.fromhex(operand[2:])[::-1], exact).astype(wanted)
        if operand == "WARP_SZ":
            return np.array([WARP]).astype(wanted)
        if operand.startswith("%") or operand.rstrip("0123456789") in self.program.kinds:
            return np.full(wanted.itemsize, 0xFF, np.uint8).view(wanted)
        if operand in self.program.rooms:
            return np.array([self.program.rooms[operand]]).astype(wanted)
        if "_param_" in operand:
            return np.array([PARAMETERS + MAP_BYTES * int(operand.rpartition("_")[2])]).astype(wanted)
        return np.array([int(operand.rstrip("U"), 0)]).astype(wanted)

    def put(self, register: str, value: Array) -> None:
        """Put a value in the registers of the threads at hand; a narrow one is made as wide as these are."""
        if register == "_":
            return
        kind = self.program.kind(register)
        if value.dtype != kind:
            value = value.view(kind) if value.itemsize == kind.itemsize else value.astype(kind)
        if not self.full and (before := self.registers.get(register)) is not None:
            value = np.where(self.mask, value, before)
        else:
            value = value.copy()
        self.registers[register] = value

    def address(self, operand: str) -> Array:
        """Where each thread's operand in brackets is, or what a register without these says."""
        base, _, offset = operand.strip("[]").partition("+")
        wide = base in self.program.rooms or self._width(base) == 8
        return self.value(base, "u64" if wide else "u32").astype(np.int64) + int(offset or "0", 0)

    def _width(self, base: str) -> int:
        return self.registers[base].itemsize if base in self.registers else 8

    def warps(self) -> Array:
        """Which warps run the instruction at hand; each with all of its threads."""
        whole = self.mask.reshape(-1, WARP).all(1)
        assert int(whole.sum()) * WARP == int(self.mask.sum()), "threads of a warp are apart"
        return np.flatnonzero(whole)
