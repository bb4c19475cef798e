"""POST /matmul with Prefer: respond-async: the product becomes a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from app.api.body.dispatch import answer_media
from app.api.formats import json_matrix
from app.api.formats.operand_spec import ProductOptions, bytes_of
from app.api.idempotency import key_of, once
from app.api.negotiation import Preference, listed
from app.api.responses import Job, reply
from app.api.routes.job_result import result_of
from app.api.routes.jobs import ended_within
from app.api.state import service_of, state_of, threads_of
from app.services.jobs.async_products import AsyncProducts
from app.services.jobs.idempotency import IdempotentRequest, fingerprint
from app.services.jobs.service import ENDED
from app.services.matmul.buffers import OperandBuffers
from app.store.records import JobRecord

_LOG: Final = logging.getLogger(__name__)
ACCEPTED: Final[dict[int | str, dict[str, Any]]] = {
    202: {
        "model": Job,
        "description": "With `Prefer: respond-async` or `wait`: the job; its result is at `/jobs/{id}/result`.",
        "headers": {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in {
                "Location": "The job's place.",
                "Retry-After": "Seconds after which to ask for the job.",
                "Preference-Applied": "What was heeded, such as respond-async, wait=5.",
            }.items()
        },
    }
}


async def accepted(
    request: Request,
    buffers: OperandBuffers,
    options: ProductOptions,
    stack: AsyncExitStack,
    prefer: Preference,
    own: str,
) -> Response:
    """Make the product as a job, once for an Idempotency-Key; its buffers are kept until it is made.

    `own` is the form of C if Accept says none.
    """
    media = answer_media(listed(request, "accept"), own)  # refuses what is not acceptable before it is computed
    if prefer.wait and media == json_matrix.MEDIA:
        json_matrix.check_answer(buffers.problem, options.convert)
    print_ = await threads_of(request).call(_fingerprint, request, buffers, options) if key_of(request) else ""
    ended = partial(_ended, request, options.convert, own)
    return await once(request, print_, partial(_create, request, buffers, options, stack, prefer, ended), ended)


async def _create(
    request: Request,
    buffers: OperandBuffers,
    options: ProductOptions,
    stack: AsyncExitStack,
    prefer: Preference,
    ended: Callable[[JobRecord], Awaitable[Response]],
    attempt: IdempotentRequest | None,
) -> Response:
    service, threads, state = service_of(request), threads_of(request), state_of(request.app)
    job = await threads.call(service.results.create, buffers, None if attempt is None else attempt.record_job)
    held = stack.pop_all()

    async def made() -> None:
        async with held, _concluded(service.results, job.id):
            result = await threads.work(service.results.make, job.id, buffers, *options.how)
        if result is not None:
            state.metrics.phases(result["device"], {name: took / 1e3 for name, took in result["timing_ms"].items()})

    task = asyncio.create_task(made())
    state.tasks.add(task)
    task.add_done_callback(partial(_over, state.tasks))
    headers = {"Location": f"/jobs/{job.id}", "Preference-Applied": prefer.applied}
    if prefer.wait:
        job = await ended_within(service, threads, job.id, prefer.wait)
    if job.state not in ENDED:
        after = service.matmul.admission.retry_after()
        return reply(Job.of(job), 202, headers | {"Retry-After": str(after)})
    response = await ended(job)
    response.headers.update(headers)
    return response


@asynccontextmanager
async def _concluded(results: AsyncProducts, job_id: str) -> AsyncIterator[None]:
    """End the job whatever happens inside: its client waits for an end."""
    try:
        yield
    except BaseException as error:
        results.abandon(job_id, error)
        raise


def _over(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a product made as a job failed of a fault in the service", exc_info=error)


async def _ended(request: Request, convert: bool | None, own: str, job: JobRecord) -> Response:
    """The result of a job that ended, or the error that it ended with."""
    if job.state == "succeeded":
        return await result_of(request, job, convert, own)
    raise service_of(request).results.error(job)


def _fingerprint(request: Request, buffers: OperandBuffers, options: ProductOptions) -> str:
    """The fingerprint of a product, with the operands' bytes for the body's."""
    scope, told = request.scope, repr((buffers.problem, buffers.keys, options, buffers.stacked)).encode()
    operands = (bytes_of(buffers.a), bytes_of(buffers.b))
    return fingerprint(request.method, request.url.path, scope["query_string"], told, *operands)
