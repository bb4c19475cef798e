"""Products made as jobs: kept for a while, lost with a restart, and said to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from opening import settings

from app.errors import NoResult
from app.main import Service, opened
from app.services.results import Results
from kernels.problem import Problem


def test_a_result_is_kept_and_then_its_time_is_over(service: Service, tmp_path: Path) -> None:
    for ttl, kept in ((3600, True), (0, False)):
        results = Results(service.database, service.jobs, service.matmul, tmp_path / str(ttl), ttl)
        results.start()
        with service.matmul.place(Problem(3, 4, 5)) as placed:
            placed.a[...], placed.b[...] = 1, 2
            job = results.create(placed)
            results.make(job.id, placed, None, None)
        assert service.jobs.get(job.id).state == "succeeded"
        if kept:
            assert np.array_equal(np.load(results.path(job.id)), np.full((3, 4), 10, np.float32))
        else:
            with pytest.raises(NoResult):
                results.path(job.id)


def test_an_error_is_the_jobs_error(service: Service, tmp_path: Path) -> None:
    results = Results(service.database, service.jobs, service.matmul, tmp_path, 60)
    with service.matmul.place(Problem(3, 4, 5)) as placed:
        job = results.create(placed)
        results.make(job.id, placed, None, "magic")
    ended = service.jobs.get(job.id)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "unknown_kernel"


def test_after_a_restart_an_unfinished_product_is_lost_and_says_so(tmp_path: Path) -> None:
    with opened(settings(tmp_path), "the first") as first, first.matmul.place(Problem(3, 4, 5)) as placed:
        job = first.results.create(placed)
    with opened(settings(tmp_path), "the second") as second:
        ended = second.jobs.get(job.id)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "lost"
