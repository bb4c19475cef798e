"""Runs what NVRTC makes of a kernel, as PTX, on a machine with no GPU: slowly, and checking what a GPU would not say.

Semantics are the PTX ISA's, "Instruction Set". All threads of a block go on together where they are at the same place;
who is behind goes first. Copies under way (cp.async) arrive when they are waited for and are NaN before; shared memory
starts as NaN. Reads of shared memory count how often threads served together meet on a bank. A float32 FMA is rounded
twice, to float64 and then to float32: the same for integers, and for others but once in some hundred million times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from ptxprogram import BINARY, COMPARE, TYPES, WARP, WIDER, Program
from ptxshared import Array, Shared

from kernels.kernel import Launch


class Machine:
    """One function's PTX, ready to be launched on buffers in host memory."""

    def __init__(self, text: str) -> None:
        self.program, self.conflicts = Program(text), 0

    def launch(
        self, launch: Launch, arguments: Sequence[int], memory: Array, readable: Array, order: Sequence[int] = ()
    ) -> None:
        """Run all blocks, one after the other; `memory` is bytes, and pointers are offsets into it.

        `readable` says of each byte whether it may be read. `order` is the blocks', where it is not from the first on.
        """
        for number in order or range(launch.grid):
            block = Block(self.program, launch, arguments, memory, readable, number)
            block.run()
            self.conflicts += block.shared.conflicts


class Block:
    """The registers, shared memory and copies under way of one block."""

    def __init__(
        self, program: Program, launch: Launch, arguments: Sequence[int], memory: Array, readable: Array, block: int
    ) -> None:
        self.program, self.memory, self.threads, self.arguments = program, memory, launch.threads, arguments
        self.readable, self.shared = readable, Shared(max(program.shared_bytes, launch.shared_bytes))
        self.registers: dict[str, Array] = {
            "%tid.x": np.arange(self.threads, dtype=np.uint32),
            "%ctaid.x": np.full(self.threads, block, np.uint32),
        }
        self.constants: dict[tuple[str, str], Array] = {}
        self.place = np.zeros(self.threads, np.int64)
        self.mask = np.ones(self.threads, np.bool_)
        self.waits = np.zeros(self.threads, np.bool_)

    def run(self) -> None:
        end = len(self.program.code)
        with np.errstate(all="ignore"):
            while True:
                going = ~self.waits & (self.place < end)
                if not going.any():
                    if not self.waits.any():
                        return
                    assert self.waits.all(), "some threads left while others wait for them"
                    self.waits[:] = False
                    self.shared.barrier()
                    continue
                at = int(self.place[going].min())
                self._step(at, going & (self.place == at))

    def _step(self, at: int, mask: Array) -> None:
        guard, negated, opcode, operands = self.program.code[at]
        self.place[mask] = at + 1
        self.mask = mask & (self.registers[guard] ^ negated) if guard else mask
        if self.mask.any():
            name, *rest = opcode.split(".")
            action = getattr(self, f"do_{name}", None)
            if action is None:
                self._compute(name, rest, operands)
            else:
                action(rest, operands)

    def value(self, operand: str, kind: str) -> Array:
        """An operand as the instruction's type sees it."""
        if operand in self.registers:
            held, wanted = self.registers[operand], np.dtype(TYPES[kind])
            if held.itemsize > wanted.itemsize:  # the lower half of a wide one
                held = np.ascontiguousarray(held.view(wanted).reshape(self.threads, -1)[:, 0])
            return held if held.dtype == wanted else held.view(wanted)
        if (operand, kind) not in self.constants:
            self.constants[operand, kind] = np.repeat(self._constant(operand, np.dtype(TYPES[kind])), self.threads)
        return self.constants[operand, kind]

    def _constant(self, operand: str, wanted: np.dtype[Any]) -> Array:
        if operand.startswith(("0d", "0f")):
            return np.frombuffer(bytes.fromhex(operand[2:])[::-1], np.float64 if operand[1] == "d" else np.float32)
        return np.array([self.program.rooms[operand] if operand in self.program.rooms else int(operand, 0)]).astype(
            wanted
        )

    def put(self, register: str, value: Array) -> None:
        if register == "_":
            return
        kind = self.program.kind(register)
        value = value if value.dtype == kind else value.view(kind)
        if register in self.registers and not self.mask.all():
            value = np.where(self.mask, value, self.registers[register])
        self.registers[register] = value.copy()

    def _compute(self, name: str, rest: list[str], operands: list[str]) -> None:
        kind, target = rest[-1], operands[0]
        x, y = (self.value(operand, kind) for operand in operands[1:3])
        if name == "mul" and rest[0] == "wide":
            wide = np.dtype(TYPES[WIDER[kind]])
            self.put(target, x.astype(wide) * y.astype(wide))
        elif name == "mul" and rest[0] == "hi":
            wide = np.dtype(TYPES[WIDER[kind]])
            self.put(target, np.right_shift(x.astype(wide) * y.astype(wide), 8 * x.itemsize).astype(x.dtype))
        elif name in {"div", "rem"}:  # PTX's quotients are towards zero; nothing here divides what is negative
            assert (x[self.mask] >= 0).all()
            assert (y[self.mask] > 0).all()
            self.put(target, BINARY[name](x, np.where(y == 0, 1, y)).astype(x.dtype))
        else:
            self.put(target, BINARY[name](x, y))

    def do_mad(self, rest: list[str], operands: list[str]) -> None:
        x, y = (self.value(operand, rest[-1]) for operand in operands[1:3])
        kind = WIDER[rest[-1]] if rest[0] == "wide" else rest[-1]
        wide = np.dtype(TYPES[kind])
        self.put(operands[0], x.astype(wide) * y.astype(wide) + self.value(operands[3], kind))

    def do_fma(self, rest: list[str], operands: list[str]) -> None:
        x, y, z = (self.value(operand, rest[-1]) for operand in operands[1:])
        if rest[-1] == "f32":
            self.put(operands[0], (x.astype(np.float64) * y + z).astype(np.float32))
        else:
            product = x * y
            whole = (product == np.trunc(product)) & (np.abs(product) < 2.0**53)
            assert (whole | ~np.isfinite(product) | (x == 1))[self.mask].all(), "a product that would be rounded"
            self.put(operands[0], product + z)

    def do_bfi(self, rest: list[str], operands: list[str]) -> None:
        field, into = (self.value(operand, rest[-1]) for operand in operands[1:3])
        at, length = (int(operand) for operand in operands[3:])
        mask = into.dtype.type(((1 << length) - 1) << at)
        self.put(operands[0], (into & ~mask) | (field << into.dtype.type(at) & mask))

    def do_prmt(self, _: list[str], operands: list[str]) -> None:
        """Four bytes of eight, as four digits choose them."""
        eight = np.stack([self.value(operand, "b32") for operand in operands[1:3]], 1).view(np.uint8)
        digits = [int(operands[3], 0) >> 4 * place & 0xF for place in range(4)]
        assert max(digits) < 8, "a byte's sign is not asked for here"
        self.put(operands[0], np.ascontiguousarray(eight[:, digits]).view(np.uint32).reshape(-1))

    def do_not(self, rest: list[str], operands: list[str]) -> None:
        self.put(operands[0], ~self.value(operands[1], rest[-1]))

    def do_neg(self, rest: list[str], operands: list[str]) -> None:
        self.put(operands[0], -self.value(operands[1], rest[-1]))

    def do_shl(self, rest: list[str], operands: list[str]) -> None:
        x = self.value(operands[1], rest[-1])
        self.put(operands[0], x << self.value(operands[2], "u32").astype(x.dtype))

    def do_shr(self, rest: list[str], operands: list[str]) -> None:
        x = self.value(operands[1], rest[-1])
        self.put(operands[0], x >> self.value(operands[2], "u32").astype(x.dtype))

    def do_cvt(self, rest: list[str], operands: list[str]) -> None:
        self.put(operands[0], self.value(operands[1], rest[-1]).astype(TYPES[rest[-2]]))

    def do_setp(self, rest: list[str], operands: list[str]) -> None:
        x, y = (self.value(operand, rest[-1]) for operand in operands[1:])
        self.put(operands[0], COMPARE[rest[0]](x, y))

    def do_selp(self, rest: list[str], operands: list[str]) -> None:
        x, y = (self.value(operand, rest[-1]) for operand in operands[1:3])
        self.put(operands[0], np.where(self.registers[operands[3]], x, y))

    def do_mov(self, rest: list[str], operands: list[str]) -> None:
        target, origin = operands
        if origin.startswith("{"):
            parts = [self.value(part.strip(), "b32") for part in origin[1:-1].split(",")]
            self.put(target, np.stack(parts, 1).reshape(-1).view(np.uint64))
        elif target.startswith("{"):
            halves = self.value(origin, "b64").view(np.uint32).reshape(-1, 2)
            for part, half in zip(target[1:-1].split(","), halves.T, strict=True):
                self.put(part.strip(), np.ascontiguousarray(half))
        else:
            self.put(target, self.value(origin, rest[-1]))

    def do_cvta(self, _: list[str], operands: list[str]) -> None:
        self.put(operands[0], self.value(operands[1], "u64"))

    def do_bra(self, _: list[str], operands: list[str]) -> None:
        self.place[self.mask] = self.program.labels[operands[0]]

    def do_ret(self, _: list[str], __: list[str]) -> None:
        self.place[self.mask] = len(self.program.code)

    def do_bar(self, rest: list[str], _: list[str]) -> None:
        if rest[0] == "warp":
            self._expect_whole_warps()
        else:
            self.waits |= self.mask

    def _expect_whole_warps(self) -> None:
        assert self.mask.reshape(-1, WARP).all(1).sum() * WARP == self.mask.sum(), "threads of a warp are apart"

    def do_membar(self, _: list[str], __: list[str]) -> None:
        """One block runs at a time."""

    def address(self, operand: str) -> Array:
        base, _, offset = operand.strip("[]").partition("+")
        width = "u64" if base.startswith("%rd") else "u32"
        return self.value(base, width).astype(np.int64) + int(offset or 0)

    def do_ld(self, rest: list[str], operands: list[str]) -> None:
        if rest[0] == "param":
            number = int(operands[1].strip("[]").rpartition("_")[2])
            self.put(operands[0], np.full(self.threads, self.arguments[number]).astype(TYPES[rest[-1]]))
            return
        dtype = np.dtype(TYPES[rest[-1]])
        targets = [part.strip() for part in operands[0].strip("{}").split(",")]
        size, first = len(targets) * dtype.itemsize, self.address(operands[1])[self.mask]
        content = np.zeros((self.threads, size), np.uint8)
        if "shared" in rest:
            content[self.mask] = self.shared.load(np.flatnonzero(self.mask), first, size)
        else:
            content[self.mask] = self._read(first, size)
        for target, column in zip(targets, content.view(dtype).T, strict=True):
            self.put(target, np.ascontiguousarray(column))

    def _read(self, first: Array, size: int) -> Array:
        """Rows of bytes of global memory."""
        assert (first % size == 0).all(), "an access to global memory that is not aligned"
        places = first[:, None] + np.arange(size)
        assert (first >= 0).all()
        assert self.readable[places].all(), "a read past what there is"
        return self.memory[places]

    def do_st(self, rest: list[str], operands: list[str]) -> None:
        origins = [part.strip() for part in operands[1].strip("{}").split(",")]
        rows = np.stack([self.value(origin, rest[-1])[self.mask] for origin in origins], 1)
        content, first = rows.view(np.uint8), self.address(operands[0])[self.mask]
        if "shared" in rest:
            self.shared.store(np.flatnonzero(self.mask), first, content)
        else:
            assert (first >= 0).all()
            assert (first % content.shape[1] == 0).all(), "an access to global memory that is not aligned"
            self.memory[first[:, None] + np.arange(content.shape[1])] = content

    def do_atom(self, rest: list[str], operands: list[str]) -> None:
        assert self.mask.sum() == 1
        place = self.address(operands[1])[self.mask][0]
        word = self.memory[place : place + 4].view(np.uint32)
        before = np.full(self.threads, word[0], np.uint32)
        word += self.value(operands[2], rest[-1])[self.mask][0]
        self.put(operands[0], before)

    def do_cp(self, rest: list[str], operands: list[str]) -> None:
        if rest[1] == "commit_group":
            assert self.mask.all()
            self.shared.sent()
        elif rest[1] == "wait_group":
            assert self.mask.all()
            self.shared.wait(int(operands[0]))
        else:
            self._copy(operands)

    def _copy(self, operands: list[str]) -> None:
        """What is not kept is filled with zeros; where nothing is said of that, all is kept."""
        size = int(operands[2])
        taken = self.value(operands[3] if len(operands) > 3 else operands[2], "u32")
        assert ((taken == 0) | (taken == size))[self.mask].all()
        content, reads = np.zeros((self.threads, size), np.uint8), self.mask & (taken > 0)
        content[reads] = self._read(self.address(operands[1])[reads], size)
        self.shared.send(np.flatnonzero(self.mask), self.address(operands[0])[self.mask], content[self.mask])

    def do_mma(self, rest: list[str], operands: list[str]) -> None:
        """A warp's C + A B, each matrix dealt out as "Matrix Fragments" of the PTX ISA say (.f64)."""
        self._expect_whole_warps()
        m, _, k = map(int, re.fullmatch(r"m(\d+)n(\d+)k(\d+)", rest[2]).groups())  # type: ignore[union-attr]
        names = [[part.strip() for part in operand.strip("{}").split(",")] for operand in operands]
        lane, warps = np.arange(32), self.threads // 32
        group, member = lane // 4, lane % 4
        a, b, c = (np.zeros((warps, *shape)) for shape in ((m, k), (k, 8), (m, 8)))
        for i, name in enumerate(names[1]):
            a[:, group + i % (m // 8) * 8, member + i // (m // 8) * 4] = self.value(name, "f64").reshape(warps, 32)
        for i, name in enumerate(names[2]):
            b[:, member + i * 4, group] = self.value(name, "f64").reshape(warps, 32)
        for i, name in enumerate(names[3]):
            c[:, group + i // 2 * 8, member * 2 + i % 2] = self.value(name, "f64").reshape(warps, 32)
        c = c + a @ b
        for i, name in enumerate(names[0]):
            self.put(name, c[:, group + i // 2 * 8, member * 2 + i % 2].reshape(-1))
