"""Runs what NVRTC makes of a kernel, as PTX, on a machine with no GPU: slowly, and checking what a GPU would not say.

Semantics are the PTX ISA's, "Instruction Set". Copies under way (cp.async, bulk copies) arrive when they are waited
for and are NaN before; what is used without a wait, a barrier or a fence that the memory model asks for is an
AssertionError.
Reads of shared memory count how often threads served together meet on a bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernels.launch import Launch
from tests.ptx_interpreter.block import Block
from tests.ptx_interpreter.program import Array, Program
from tests.ptx_interpreter.warp_matrices import Sums, exact_sums
from tests.ptx_interpreter.wgmma import Hopper


class Machine:
    """One function's PTX, ready to be launched on buffers in host memory."""

    def __init__(self, text: str) -> None:
        self.program, self.conflicts = Program(text), 0
        self.kind = Hopper if any(word in text for word in ("mbarrier", "wgmma", ".bulk", "mapa")) else Block

    def launch(
        self,
        launch: Launch,
        arguments: Sequence[Any],
        memory: Array,
        readable: Array,
        order: Sequence[int] = (),
        draw: Any = None,
        sums: Sums = exact_sums,
    ) -> None:
        """Run all blocks, a cluster after the other; `memory` is bytes, and pointers are offsets into it.

        `readable` says of each byte whether it may be read. `order` is the blocks', where it is not from the first on.
        Of the arguments, tensor maps are bulk_copies.Bound. `sums` is how tensor cores add (warp_matrices.py).
        """
        wide = self.program.cluster
        assert launch.grid % wide == 0, "a grid that is not of whole clusters"
        assert launch.threads <= self.program.most_threads, "more threads of a block than its launch bounds allow"
        assert len(arguments) >= self.program.parameters, "fewer arguments than the kernel has parameters"
        for number in dict.fromkeys(block // wide for block in (order or range(launch.grid))):
            block = self.kind(self.program, launch, arguments, memory, readable, number * wide, draw)
            block.sums = sums
            block.run()
            self.conflicts += block.shared.conflicts
