"""What a call costs the host: c and cpp by overhead.c, cuda-core beside cuda.core's own launch."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from benchmarks.exports.targets import Command, Said, run, settled
from benchmarks.exports.winners import Taken

HERE: Final = Path(__file__).parent
BAR_US: Final = 4.5
CALLS, ROUNDS = 500, 25  # fewer calls than a stream's queue takes
LEAST_CALLS: Final = 20
ROUND_MS: Final = 100.0  # of the GPU's time for a round
LIMIT: Final = 30.0


class Overhead:
    """The programs that time calls, in the folder of the target cpp, which has all that c has."""

    @staticmethod
    def builds(folder: Path) -> tuple[Command, ...]:
        """Put the source into a folder, and give the commands that build it as C and as C++."""
        shutil.copy(HERE / "overhead.c", folder)
        shared = "overhead.c -o {} calls.o -ldl"
        return (
            "cc -O2 -c tilewise_gemm.c -o calls.o",
            "cc -O2 -std=gnu11 " + shared.format("calls_c").replace("overhead.c", "-Wno-unused-function overhead.c"),
            "c++ -O2 -std=c++17 -x c++ overhead.c -x none -o calls_cpp calls.o -ldl",
        )


def overheads(winners: Sequence[tuple[Taken, Future[Said] | None]], end: float) -> Iterator[dict[str, Any]]:
    """A row of each winner and target; of what the time does not suffice for with that as its reason."""
    for won, build in winners:
        words = (str(_calls(won.winner.best_ms)), str(ROUNDS))
        if build is not None:
            built = settled(build, end)
            for target, program in (("c", "./calls_c"), ("cpp", "./calls_cpp")):
                said = built if built.reason else run([(program, *words)], won.folders["cpp"], LIMIT, end)
                yield _row(won, target, said)
        if "cuda-core" in won.folders:
            script = (sys.executable, str(HERE / "overhead_cuda_core.py"), *words)
            yield _row(won, "cuda-core", run([script], won.folders["cuda-core"], LIMIT, end))


def _calls(best_ms: float | None) -> int:
    return max(LEAST_CALLS, min(CALLS, int(ROUND_MS / (best_ms or 1.0))))


def _row(won: Taken, target: str, said: Said) -> dict[str, Any]:
    manifest = json.loads((won.folders["cuda-core" if target == "cuda-core" else "cpp"] / "manifest.json").read_text())
    maps = any("tensor_map" in argument for launch in manifest["launches"] for argument in launch["args"])
    micros, held_to = said.values.get("us_a_call"), len(manifest["launches"]) == 1 and not maps
    row = {"kernel": won.winner.kernel, "problem": str(won.winner.problem), "target": target, "us_a_call": micros}
    row |= {"launches": len(manifest["launches"]), "tensor_maps": maps, "reason": said.reason}
    row["cuda_core_us"] = said.values.get("cuda_core_us")
    return row | {"met": (micros is not None and micros <= BAR_US) if held_to else None}
