"""A product as a job: `Prefer: respond-async` answers at once, and the caller comes back for the result."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import Job, reply
from app.api.codecs import Received
from app.api.service import service_of, tasks_of, threads_of

_ASYNC: Final = re.compile(r"(?:^|[,;])\s*respond-async\s*(?:$|[,;])", re.IGNORECASE)

ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": Job,
        "description": "With `Prefer: respond-async`: the job, whose result is one .npy at `/jobs/{id}/result`.",
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in {
                "Location": "The job's place.",
                "Retry-After": "Seconds after which to ask for the job.",
                "Preference-Applied": "respond-async",
            }.items()
        },
    }
}


def wants_job(request: Request) -> bool:
    """Whether the caller prefers a job to waiting."""
    return any(_ASYNC.search(prefer) for prefer in request.headers.getlist("prefer"))


async def accepted(request: Request, received: Received, stack: AsyncExitStack) -> Response:
    """Take the product as a job; the operands' place is held until it is made."""
    service, threads, tasks = service_of(request), threads_of(request), tasks_of(request)
    placement, wanted = received.placement, received.wanted
    job = await threads.call(service.results.create, placement)
    held = stack.pop_all()

    async def make() -> None:
        async with held:
            await threads.work(service.results.make, job.id, placement, wanted.device, wanted.kernel)

    task = asyncio.create_task(make())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    headers = {"Location": f"/jobs/{job.id}", "Retry-After": "1", "Preference-Applied": "respond-async"}
    return reply(Job.of(job), 202, headers)
