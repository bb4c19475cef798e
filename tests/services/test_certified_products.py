"""Products that are verified: a wrong one is neither answered nor kept, a right one says what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.errors import CertificateFailed, UnknownMatrix
from app.services.matmul.buffers import OperandBuffers
from app.services.matmul.certificates import device_sketch
from app.services.matmul.certificates.freivalds import Sketch
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.worker.serving import product
from kernels.problem import Problem
from tests.services.test_async_products import keeping
from tests.support.services import declining_kernels, flipped_bits

PROBLEM = Problem(256, 256, 256)


@pytest.fixture(params=["host", "device"], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the sketch is made; one as small as these is the host's otherwise."""
    if request.param == "device":
        monkeypatch.setattr(device_sketch, "PLATFORMS", frozenset({"opencl"}))
        monkeypatch.setattr(device_sketch, "LEAST", 0)
        monkeypatch.setattr(device_sketch, "_SMALL", 1.0)
    return str(request.param)


@contextmanager
def sketched(where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expect a sketch of the device for each certificate inside, or none."""
    found: list[bool] = []
    right = device_sketch.SketchOnDevice.sketch

    def sketch(asked: device_sketch.SketchOnDevice) -> Sketch | None:
        made = right(asked)
        found.append(made is not None)
        return made

    monkeypatch.setattr(device_sketch.SketchOnDevice, "sketch", sketch)
    yield
    assert found == ([True] if where == "device" else [])


def fill(placed: OperandBuffers) -> None:
    rng = np.random.default_rng(4)
    for operand in (placed.a, placed.b):
        operand[...] = rng.standard_normal(operand.shape)


def test_a_right_product_has_a_certificate_and_the_time_that_it_took(
    service: Service, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.matmul.reserve(PROBLEM) as placed:
        fill(placed)
        plain = service.matmul.multiply(placed)
        with sketched(where, monkeypatch):
            made = service.matmul.multiply(placed, verify="freivalds")
    assert plain.certificate is None
    assert "verify" not in plain.seconds
    assert made.certificate is not None
    assert made.certificate.residual < made.certificate.bound
    assert made.seconds["verify"] > 0


def test_resident_operands_are_verified_where_they_lie(
    service: Service, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = service.matrices
    with matrices.reserve(ANONYMOUS, "certified", "float32", (256, 256)) as pending:
        matrices.view(pending.resident)[:] = np.eye(256, dtype=np.float32).tobytes()
        pending.keep()
    with matrices.pin(ANONYMOUS, "certified") as kept, service.matmul.reserve(PROBLEM, kept, kept) as placed:
        with sketched(where, monkeypatch):
            made = service.matmul.multiply(placed, verify="freivalds")
        assert made.certificate is not None
        assert made.certificate.residual == 0
        assert made.certificate.bound > 0
    matrices.delete(ANONYMOUS, "certified")


def test_a_wrong_product_is_refused_and_replaces_no_matrix(
    service: Service, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "multiply", declining_kernels.spoil)
    kept = service.matrices.reserve(ANONYMOUS, "wrong", "float32", (256, 256))
    with kept as pending, service.matmul.reserve(PROBLEM, c=pending) as placed:
        fill(placed)
        with pytest.raises(CertificateFailed) as failure:
            service.matmul.multiply(placed, verify="freivalds")
        facts = failure.value.facts
        assert where == "device" or facts["row"] == 255
        assert float(str(facts["residual"])) > float(str(facts["limit"]))
    with pytest.raises(UnknownMatrix), service.matrices.pin(ANONYMOUS, "wrong"):
        pass
    assert service.matmul.admission.waiting == 0


def test_a_job_whose_product_is_wrong_has_failed(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "multiply", declining_kernels.spoil)
    with keeping(service, tmp_path) as results, service.matmul.reserve(PROBLEM) as placed:
        fill(placed)
        job = results.create(placed)
        assert results.make(job.id, placed, None, None, "freivalds") is None
        ended = service.jobs.get(job.id)
        assert (ended.state, ended.error and ended.error["code"]) == ("failed", "certificate_failed")
        assert not results.store.holds(job.id)


LARGE = Problem(2950, 2950, 600)  # C leaves its device in chunks


@pytest.mark.rotating
@pytest.mark.parametrize("problem", [PROBLEM, LARGE], ids=["at once", "in chunks"])
@pytest.mark.parametrize(
    "flip",
    [
        flipped_bits.of_operand,
        flipped_bits.of_slab,
        flipped_bits.of_c,
        flipped_bits.of_operand_beside,
        flipped_bits.of_c_beside,
    ],
)
def test_a_bit_that_flips_anywhere_is_found(
    service: Service, monkeypatch: pytest.MonkeyPatch, flip: Callable[..., object], problem: Problem
) -> None:
    """In the device's copy of A before it is multiplied, in the slab's B after it came, and in C before any look."""
    with service.matmul.reserve(problem) as placed, closing(service.matmul.certifier(placed)) as certifier:
        assert (placed.transfer is not None) == (problem is LARGE)
        fill(placed)
        certifier.operands_are_there()
        for name in "ab":
            certifier.read(name)
        monkeypatch.setattr(product, "multiply", flip)
        with pytest.raises(CertificateFailed) as failure:
            service.matmul.multiply(replace(placed, certifier=certifier), verify="freivalds")
        assert float(str(failure.value.facts["residual"])) > float(str(failure.value.facts["limit"]))
