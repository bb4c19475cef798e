"""Products that a GPU makes and looks at itself: every class passes, and a bit that flips anywhere is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product as every

import pytest

from app.errors import CertificateFailed
from app.main import opened
from app.services.service import Service
from app.tuning.verify import tolerance
from app.worker.serving import product
from kernels.problem import Problem
from tests.services.test_certificates import CLASS
from tests.support.services import flipped_bits
from tests.support.services.service_settings import settings

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("driver")]
PROBLEM = Problem(2100, 1900, 1700)
LARGE = Problem(4096, 4096, 2048)  # C leaves its device in chunks


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    changed = {"devices": "cuda:0", "slab_bytes": 2**29}
    with opened(settings(tmp_path_factory.mktemp("gpu")).model_copy(update=changed), "the tests") as service:
        yield service


@pytest.mark.parametrize(("trans_a", "trans_b"), list(every([False, True], repeat=2)))
@pytest.mark.parametrize(("dtype", "precision"), CLASS)
def test_products_of_every_class_pass(gpu: Service, dtype: str, precision: str, trans_a: bool, trans_b: bool) -> None:
    problem = replace(PROBLEM, dtype=dtype, precision=precision, trans_a=trans_a, trans_b=trans_b)
    a, b = tolerance.operands(problem, seed=3)
    with gpu.matmul.reserve(problem) as placed, closing(gpu.matmul.certifier(placed)) as certifier:
        placed.a[...], placed.b[...] = a[0], b[0]
        made = gpu.matmul.multiply(replace(placed, certifier=certifier), verify="freivalds")
        assert certifier.on_device is not None
        assert certifier.on_device.sketch() is not None
        assert made.certificate is not None
        assert 0 < made.certificate.residual < made.certificate.bound


@pytest.mark.parametrize("problem", [PROBLEM, LARGE], ids=["at once", "in chunks"])
@pytest.mark.parametrize("flip", [flipped_bits.of_operand, flipped_bits.of_slab, flipped_bits.of_c])
def test_a_bit_that_flips_anywhere_is_found(
    gpu: Service, monkeypatch: pytest.MonkeyPatch, flip: Callable[..., object], problem: Problem
) -> None:
    a, b = tolerance.operands(problem, seed=3)
    with gpu.matmul.reserve(problem) as placed, closing(gpu.matmul.certifier(placed)) as certifier:
        placed.a[...], placed.b[...] = a[0], b[0]
        certifier.operands_are_there()
        for name in "ab":
            certifier.read(name)
        monkeypatch.setattr(product, "multiply", flip)
        with pytest.raises(CertificateFailed):
            gpu.matmul.multiply(replace(placed, certifier=certifier), verify="freivalds")
