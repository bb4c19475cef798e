"""wgmma_registers.h, generated: the accumulators of wgmma.mma_async as asm operands, for each width of its tile.

An asm statement has to name every register of the accumulators; a thread has TILE_N / 2 of them.
"""

from __future__ import annotations

from functools import cache
from string import Template
from typing import Final

WIDTHS: Final = tuple(range(8, 257, 8))

_BRANCH: Final = Template("""\
#$directive TILE_N == $n
#define WGMMA_N "n$n"
#define ACC_REGISTERS "$registers"
#define ACC_OPERANDS $operands
$inputs""")


@cache
def header() -> str:
    """The header's text; hopper/wgmma.h describes its macros."""
    branches = "".join(_branch(n, "elif" if index else "if") for index, n in enumerate(WIDTHS))
    return f'{branches}#else\n#error "TILE_N is no width of wgmma that is served"\n#endif\n'


def _branch(n: int, directive: str) -> str:
    count = n // 2
    return _BRANCH.substitute(
        directive=directive,
        n=n,
        registers=", ".join(f"%{i}" for i in range(count)),
        operands=", ".join(f'"+f"(acc[{i}])' for i in range(count)),
        inputs="".join(f'#define IN_{i} "%{count + i}"\n' for i in range(6)),
    )
