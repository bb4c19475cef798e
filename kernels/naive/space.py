"""The space of naive: its parameters, and the rules that refuse what cannot run well."""

from __future__ import annotations

from typing import Final

from kernels.naive.plan import threads
from kernels.rules import grid_fits, threads_fit
from kernels.space import Space

SPACE: Final = Space(
    parameters={"BM": (1, 2, 4, 8, 16, 32), "BN": (8, 16, 32, 64, 128, 256)},
    rules={"more threads a block than the device allows": threads_fit(threads), "more than 2^31 - 1 blocks": grid_fits},
)
