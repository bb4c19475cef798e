"""The programs that a serving worker keeps: as many as its bound, the least recently used go first."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from app.services.service import Service
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.services.test_batching import multiply, operands
from tests.support.services.kept_programs import kept_of

PROBLEM = Problem(16, 16, 16)


@pytest.mark.rotating
def test_a_program_more_than_are_kept_drops_the_least_recently_used(service: Service) -> None:
    unit, naive = service.fleet.units[0], CATALOGUE["naive"]
    configs = islice(naive.space.legal(PROBLEM, unit.device), 3)
    first, second, third = (naive.launch(config, PROBLEM, unit.device) for config in configs)
    known, sizes = unit.products.call(kept_of, (first, second, first, third), 2)
    assert known == [True, False, True, True]
    assert sizes == (2, 2, 2)
    assert unit.products.call(kept_of, (second,), 2)[0] == [True]
    one = operands(PROBLEM, 1, np.random.default_rng(1))[0]
    multiply(service.matmul, PROBLEM, one, "naive")
    assert one.error is None
    assert one.c is not None
    np.testing.assert_allclose(one.c, one.a @ one.b, rtol=1e-5, atol=1e-5)
