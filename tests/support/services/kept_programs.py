"""What tests have a serving child do to see which programs it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from app.devices.fleet import WorkerContext
from app.devices.process import WorkerLink
from app.worker import state
from app.worker.serving.launch_class import ready
from app.worker.state import ProgramCache
from kernels.launch import Launch


def kept_of(
    held: WorkerContext, link: WorkerLink, launches: Sequence[Launch], most: int
) -> tuple[list[bool], tuple[int, int, int]]:
    """Build launches in turn where `most` programs are kept: which are known then, and of how many all is kept."""
    before, state.PROGRAMS = state.PROGRAMS, most  # type: ignore[misc]
    try:
        for launch in launches:
            ready(held, link, launch)
    finally:
        state.PROGRAMS = before  # type: ignore[misc]
    cache = held.state(ProgramCache)
    launched, verified = {digest for digest, _ in cache.by_launch.values()}, {kind[0] for kind in cache.verified}
    sizes = len(cache.by_digest), len(launched), len(verified)
    return [launch in cache.by_launch for launch in launches], sizes
