"""GET /lessons: the ladder of lessons on a device, rung by rung."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app import errors
from app.api.errors import documented
from app.api.openapi.direct_route import DirectRouter
from app.api.params import StrictModel, read_query
from app.api.responses import Answer, Config, Instructions, Problem, reply
from app.api.routes.analysis import Occupancy
from app.api.schemas import Columns, ConfigText, Depth, DeviceId, Rows, config_of
from app.api.state import service_of, threads_of
from app.services.charts import lessons as ladder
from app.services.charts.points import config_points
from app.services.jobs.service import JobService
from kernels import problem as kernel_problem
from kernels.device import Device

router = DirectRouter("kernels")


class LessonsQuery(StrictModel):
    """On which sizes and device to climb, and a change to look at in place of those that the lessons propose."""

    m: Rows = 512
    n: Columns = 512
    k: Depth = 512
    change: Annotated[
        ConfigText | None,
        Field(description="Values to change, of whichever lessons have such parameters.", examples=["TILE=8"]),
    ] = None
    device: DeviceId = None


class WarpAccess(Answer):
    """One load or store of a lesson's first warp."""

    what: Annotated[str, Field(description="In the source's words, such as stores to As.")]
    memory: Literal["shared", "global"]
    taken: Annotated[int, Field(description="Turns of shared memory's banks, or sectors of 32 bytes of global memory.")]
    least: Annotated[int, Field(description="How many would do for as many bytes.")]


class LessonRun(Answer):
    """A config of a lesson, by the model and as measured."""

    config: Config
    bytes_read: Annotated[int, Field(description="Bytes loaded from global memory by all blocks.")]
    intensity: Annotated[float, Field(description="Operations a byte that is read.")]
    blocks: int
    threads: Annotated[int, Field(description="Threads a block.")]
    shared_bytes: int
    occupancy: Occupancy | None
    accesses: list[WarpAccess]
    predicted_ms: Annotated[float, Field(description="The model's time, which knows no caches.")]
    measured_ms: Annotated[float | None, Field(description="The median of its newest job here; null before one.")]


class LessonStep(Answer):
    """A rung of the ladder: its idea, what it changes in the rung below, and what that gains on this device."""

    number: int
    kernel: str
    title: str
    idea: Annotated[str, Field(description="In three sentences.")]
    source: Annotated[str, Field(description="Without the headers.")]
    diff: Annotated[str, Field(description="To the rung below, unified.")]
    problem: Problem
    instructions: Instructions
    refusal: Annotated[str | None, Field(description="Why it does not run here; null where it does.")]
    run: Annotated[LessonRun | None, Field(description="Of its fastest config measured here, else of its default.")]
    change: Annotated[dict[str, int], Field(description="What to change next.")]
    changed: Annotated[LessonRun | None, Field(description="With that change; null where it is not legal.")]


class TileChoice(Answer):
    """A square tile of float32 among which the articles' decision tree chooses."""

    tile: int
    shared_bytes: Annotated[int, Field(description="Of a tile of A and one of B.")]
    fits: Annotated[bool, Field(description="Whether a block may have that much shared memory.")]
    occupancy: Annotated[float | None, Field(description="The part of an SM's threads that blocks of 256 fill.")]
    advised: bool


class Lessons(Answer):
    """The ladder on one device."""

    device: str
    advice: Annotated[str, Field(description="The articles' decision tree for tiles, answered for the device.")]
    tiles: list[TileChoice]
    lessons: list[LessonStep]


_RUN: Final = {
    "config": {"TILE": 16},
    "bytes_read": 16_777_216,
    "intensity": 4.0,
    "blocks": 1024,
    "threads": 256,
    "shared_bytes": 2048,
    "occupancy": None,
    "accesses": [{"what": "stores to As", "memory": "shared", "taken": 8, "least": 1}],
    "predicted_ms": 6.1,
    "measured_ms": 1.9,
}
_STEP: Final = {
    "number": 3,
    "kernel": "lesson03_tiled",
    "title": "tiles in shared memory",
    "idea": "A block brings a tile of A and a tile of B into shared memory, and all its threads use them.",
    "source": "// A block brings a tile of A and a tile of B into shared memory ...",
    "diff": "--- lesson02_coalesced.cu\n+++ lesson03_tiled.cu",
    "problem": {"m": 512, "n": 512, "k": 512, "batch": 1, "dtype": "float32", "precision": "strict"}
    | {"trans_a": False, "trans_b": False},
    "instructions": "fma",
    "refusal": None,
    "run": _RUN,
    "change": {"TILE": 8},
    "changed": _RUN | {"config": {"TILE": 8}, "measured_ms": 2.4},
}
_TILE: Final = {"tile": 64, "shared_bytes": 32_768, "fits": True, "occupancy": 0.75, "advised": True}
_ADVICE: Final = "sm_90 is Volta or later: try large tiles, 64 or 128 of those that fit in shared memory. Measure."
EXAMPLES: Final[dict[str, Any]] = {
    "WarpAccess": _RUN["accesses"][0],  # type: ignore[index]
    "LessonRun": _RUN,
    "LessonStep": _STEP,
    "TileChoice": _TILE,
    "Lessons": {"device": "cuda:0", "advice": _ADVICE, "tiles": [_TILE], "lessons": [_STEP]},
}


@router.get(
    "/lessons",
    summary="The ladder of lessons on a device",
    response_model=Lessons,
    responses=documented(errors.UnknownDevice, errors.Invalid, errors.StoreFailed, errors.NoDevice),
    query=LessonsQuery,
)
async def lessons(request: Request) -> Response:
    """Fourteen kernels from naive to wgmma: each one's idea, its diff to the one below, and why it gains here.

    A job that names lessons measures them (`POST /tune` with `kernels`); the fastest config of each is shown then.
    """
    asked, service = read_query(LessonsQuery, request), service_of(request)
    device = service.fleet.unit(asked.device).device
    return reply(await threads_of(request).call(climbed, service.jobs, asked, device))


def climbed(jobs: JobService, asked: LessonsQuery, device: Device) -> Lessons:
    """The answer."""
    sizes = {"m": asked.m, "n": asked.n, "k": asked.k, "batch": 1}
    points = config_points(jobs, sizes, device_model=device.model)
    change = None if asked.change is None else config_of(asked.change)
    found = ladder.lesson_steps(kernel_problem.Problem(asked.m, asked.n, asked.k), device, points, change)
    advice, tiles = ladder.tile_choices(device)
    return Lessons(
        device=device.id,
        advice=advice,
        tiles=[TileChoice.model_validate(asdict(each)) for each in tiles],
        lessons=[_step(each) for each in found],
    )


def _step(step: ladder.LessonStep) -> LessonStep:
    lesson = step.lesson
    return LessonStep(
        number=lesson.number,
        kernel=lesson.kernel.name,
        title=lesson.title,
        idea=lesson.idea,
        source=lesson.own_source,
        diff=step.diff,
        problem=Problem.of(step.problem),
        instructions=lesson.kernel.instructions,
        refusal=step.refusal,
        run=None if step.run is None else _run(step.run),
        change=dict(step.change),
        changed=None if step.changed is None else _run(step.changed),
    )


def _run(run: ladder.LessonRun) -> LessonRun:
    known = run.analysis
    return LessonRun(
        config=dict(run.config),
        bytes_read=known.bytes_read,
        intensity=known.intensity,
        blocks=known.blocks,
        threads=known.threads,
        shared_bytes=known.shared_bytes,
        occupancy=None if known.occupancy is None else Occupancy.model_validate(asdict(known.occupancy)),
        accesses=[WarpAccess.model_validate(asdict(each)) for each in run.accesses],
        predicted_ms=run.predicted_ms,
        measured_ms=run.measured_ms,
    )
