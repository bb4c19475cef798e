"""A node's actor in this process: products from operands that it reads, or is sent, and the fence of its service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from app.cluster import staging
from app.cluster.messages import NodeAnswer, NodeCall, NodeSettings, SharedSlab
from app.cluster.node import NodeActor, versions
from app.devices.lease import Priority
from app.devices.slab import Slab, SlabRegion
from app.dtypes import Array
from app.errors import Unsupported
from app.tuning.verify.block_sums import block_sums
from app.worker.serving import batched, chunked_transfer, ipc, product
from app.worker.serving.device_memory import Panel, TileTransfer
from app.worker.serving.product import MultiplyRequest
from app.worker.serving.sketch import SketchRequest
from kernels import CATALOGUE
from kernels.device import Device
from kernels.freivalds import VECTORS
from kernels.launch import Launch
from kernels.problem import Problem

NOWHERE = SharedSlab(0, 0, 4096, 0, b"another host's")
PROBLEM = Problem(m=48, n=40, k=32)


@pytest.fixture(scope="module")
def slab() -> Iterator[Slab]:
    slab = Slab(2**22)
    slab.lend(2**21)
    yield slab
    slab.close()


@pytest.fixture(scope="module", params=["read", "sent"])
def node(request: pytest.FixtureRequest, slab: Slab, binaries: Path) -> Iterator[tuple[NodeActor, Device]]:
    """A node that finds the service's slab on its host, or does not."""
    actor = NodeActor()
    shared, region = staging.announced(slab)
    settings = NodeSettings("opencl", binaries, 2**22, sandboxed=True, patience=inf)
    found = actor.open(settings, shared if request.param == "read" else NOWHERE)
    slab.release(region)
    assert found.versions == versions()
    assert found.reads_slab == (request.param == "read")
    yield actor, found.devices[0][0]
    actor.close()


def launch(device: Device, problem: Problem = PROBLEM) -> Launch:
    kernel = CATALOGUE["naive"]
    return kernel.launch(kernel.default(problem, device), problem, device)


def operand(slab: Slab, offset: int, shape: tuple[int, ...], seed: int) -> Array:
    """Integers in the slab."""
    nbytes = 4 * int(np.prod(shape))
    memory: Array = np.ndarray(shape, np.float32, slab.view(SlabRegion(offset, nbytes)))
    memory[...] = np.random.default_rng(seed).integers(-8, 8, shape)
    return memory


def made(node: tuple[NodeActor, Device], slab: Slab, function: object, *arguments: object) -> NodeAnswer:
    """Make a call as RemoteWorker does, and copy its results into the slab."""
    actor, device = node
    staged = staging.staged(function, arguments)  # type: ignore[arg-type]
    view = slab.view(SlabRegion(0, slab.nbytes))
    reads = staged.operands.reads
    sent = [] if actor.reads_slab else [staging.rows(view, panel).copy() for panel in reads]
    where = 1, device.id, "products", function, staged.arguments
    asked = NodeCall(*where, Priority.PRODUCT, 60.0, True, (inf, inf), staged.operands)  # type: ignore[arg-type]
    answer, *results = actor.call(asked, *sent)
    assert answer.kind == "value", answer.value
    if actor.reads_slab:
        results = staging.results(actor.slab_view(), staged.operands, answer.offset)
    for panel, rows in zip(staged.operands.writes, results, strict=True):
        np.copyto(staging.rows(view, panel), rows)
    actor.release(1)
    return answer


@pytest.mark.rotating
def test_a_product_is_made_from_the_services_operands_to_its_result(node: tuple[NodeActor, Device], slab: Slab) -> None:
    a, b, c = operand(slab, 0, (48, 32), 1), operand(slab, 8192, (32, 40), 2), operand(slab, 16384, (48, 40), 3)
    answer = made(node, slab, product.multiply, MultiplyRequest(PROBLEM, launch(node[1]), 0, 8192, 16384))
    assert np.array_equal(c, a @ b)
    assert answer.generation == 1


def test_a_tile_is_made_from_rows_that_lie_apart(node: tuple[NodeActor, Device], slab: Slab) -> None:
    a, b, c = operand(slab, 0, (96, 32), 1), operand(slab, 16384, (32, 80), 2), operand(slab, 32768, (96, 80), 3)
    before = c.copy()
    panels = Panel(1, 0, 48, 128, 128), Panel(2, 16384 + 160, 32, 160, 320), Panel(0, 32768 + 160, 48, 160, 320)
    request = MultiplyRequest(PROBLEM, launch(node[1]), 0, 0, 0, tile=TileTransfer(1, *panels, is_last=False))
    made(node, slab, product.multiply, request)
    assert np.array_equal(c[:48, 40:], a[:48] @ b[:, 40:])
    assert np.array_equal(c[:, :40], before[:, :40])


@pytest.mark.rotating
def test_the_node_that_makes_a_product_makes_its_sketch(node: tuple[NodeActor, Device], slab: Slab) -> None:
    a, b, c = operand(slab, 0, (48, 32), 1), operand(slab, 8192, (32, 40), 2), operand(slab, 16384, (48, 40), 3)
    asked = SketchRequest.of(np.random.default_rng(1).choice([-1, 1], (VECTORS, 48)))
    request = MultiplyRequest(PROBLEM, launch(node[1]), 0, 8192, 16384, sketch=asked)
    found = made(node, slab, product.multiply, request).value.sketch
    assert not found.largest.any()
    assert np.allclose(found.columns[0], np.linalg.norm(b, axis=0))
    for sums, matrix in zip(found.sums, (a, b, c), strict=True):
        assert np.array_equal(sums, block_sums(matrix.reshape(-1).view(np.uint8)))


def test_products_of_one_launch_are_made_together(node: tuple[NodeActor, Device], slab: Slab) -> None:
    requests, pairs = [], []
    for number in range(2):
        start = 65536 * number
        a, b = operand(slab, start, (48, 32), number), operand(slab, start + 8192, (32, 40), 5 + number)
        pairs.append((a, b, operand(slab, start + 16384, (48, 40), 9)))
        requests.append(MultiplyRequest(PROBLEM, launch(node[1]), start, start + 8192, start + 16384))
    together = launch(node[1], replace(PROBLEM, batch=2))
    made(node, slab, batched.multiply, tuple(requests), together)
    for a, b, c in pairs:
        assert np.array_equal(c, a @ b)


def test_copies_that_no_node_keeps_are_answered_here() -> None:
    assert staging.local_answer(chunked_transfer.upload_chunk) == (0,)
    assert staging.local_answer(chunked_transfer.download_chunk) == (True,)
    assert staging.local_answer(product.forget) == ((),)
    assert staging.local_answer(product.multiply) is None
    with pytest.raises(Unsupported, match="another node"):
        staging.local_answer(ipc.fetch)


def test_a_slab_is_known_by_what_is_written_in_it(slab: Slab) -> None:
    shared, region = staging.announced(slab)
    try:
        assert staging.opened(shared) is not None
        assert staging.opened(replace(shared, token=bytes(32))) is None, "another process has this number"
        assert staging.opened(replace(shared, nbytes=4096)) is None
        assert staging.opened(NOWHERE) is None
    finally:
        slab.release(region)
