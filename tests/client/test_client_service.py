"""The client against the real service."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.client.shared_service import Served
from tests.support.waiting import until
from tilewise import Client, ClientError, Job, Problem, UnknownMiss


@pytest.fixture
def client(service: Served) -> Iterator[Client]:
    with Client(service.url) as opened:
        yield opened


def pair(*shapes: tuple[int, ...], dtype: str) -> list[np.ndarray[tuple[int, ...], np.dtype[np.floating]]]:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    source = np.random.default_rng(seed)
    return [source.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("dtype", "lead", "form"),
    [
        *(("float32", (), form) for form in ("nn", "tn", "nt", "tt")),
        *(("float64", (), form) for form in ("nn", "tt")),
        *((dtype, (3,), "nt") for dtype in ("float32", "float64")),
        ("float32", (1,), "nn"),
    ],
)
def test_a_product_is_numpys(client: Client, dtype: str, lead: tuple[int, ...], form: str) -> None:
    trans_a, trans_b = (letter == "t" for letter in form)
    bound = {"float32": 1e-5, "float64": 1e-13}[dtype]
    a, b = pair((*lead, 33, 20), (*lead, 20, 17), dtype=dtype)
    stored_a = a.swapaxes(-1, -2) if trans_a else a
    stored_b = b.swapaxes(-1, -2) if trans_b else b
    made = client.product(stored_a, stored_b, trans_a, trans_b)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    assert made.c.shape == reference.shape
    assert made.c.dtype == dtype
    assert np.linalg.norm(made.c - reference) <= bound * np.linalg.norm(reference)
    assert made.match in {"exact", "stale", "nearest", "default"}
    assert made.kernel
    assert {"receive", "queue", "h2d", "kernel"} <= set(made.timing_ms)


def test_a_kernel_may_be_forced_and_is_named_with_its_config(client: Client) -> None:
    a, b = pair((40, 50), (50, 60), dtype="float32")
    naive, vendor = client.product(a, b, kernel="naive"), client.product(a, b, kernel="vendor")
    assert (naive.kernel, vendor.kernel) == ("naive", "vendor")
    assert naive.instructions == "fma"
    assert vendor.instructions
    assert naive.config
    assert np.allclose(naive.c, vendor.c, atol=1e-4)


def test_nan_and_infinity_come_through(client: Client) -> None:
    a, b = pair((9, 8), (8, 7), dtype="float32")
    a[2, 3], a[4, 4] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        assert np.array_equal(np.isfinite(client.matmul(a, b)), np.isfinite(a @ b))


def test_matrices_of_several_megabytes_are_sent_and_come_back_whole(client: Client) -> None:
    a, b = pair((700, 1100), (1100, 900), dtype="float32")
    c, reference = client.matmul(a, b), a.astype(np.float64) @ b
    assert np.linalg.norm(c - reference) <= 1e-5 * np.linalg.norm(reference)


def test_what_the_service_refuses_is_an_error_with_its_code(client: Client) -> None:
    a, b = pair((4, 4), (4, 4), dtype="float32")
    for device, kernel, code in [("cuda:99", None, "unknown_device"), (None, "no", "unknown_kernel")]:
        with pytest.raises(ClientError) as refused:
            client.matmul(a, b, device=device, kernel=kernel)
        assert (refused.value.status, refused.value.code, refused.value.body["status"]) == (404, code, 404)
    with pytest.raises(ClientError) as refused:
        client.best_config(77, 78, 79, match="exact")
    assert (refused.value.status, refused.value.code) == (404, "not_tuned")
    with pytest.raises(ClientError) as refused:
        client.job("no-such-job")
    assert refused.value.code == "unknown_job"
    with pytest.raises(ClientError) as refused:
        client.tune([(4, 4, 4)], strategy="guess")
    assert refused.value.status == 422


def tuned(client: Client) -> Job:
    """A job of two shapes that has ended: the first to ask waits for it, the same work is one job."""
    # Which kernels are tried is not the client's affair, and others take a while to compile.
    return client.tune([48, (40, 24, 56)], seconds=60, trials=8, kernels=["naive", "tiled"], wait=True)


@pytest.mark.slow
def test_a_job_is_tuned_followed_and_remembered(client: Client) -> None:
    job = tuned(client)
    assert job.state == "succeeded", job
    assert not job.failures
    assert [won.problem for won in job.best] == [Problem(48, 48, 48), Problem(40, 24, 56)]
    assert all(won.median_ms for won in job.best)
    assert {won.instructions for won in job.best} == {"fma"}
    best = client.best_config(40, 24, 56, match="exact")
    assert best.match == "exact"
    assert best.timing is not None
    assert best.timing.ci95_ms is not None
    assert best.timing.ci95_ms[0] <= best.timing.median_ms <= best.timing.ci95_ms[1]
    assert best.baselines is not None
    assert {"naive", "tiled", "vendor"} <= set(best.baselines)
    assert best.tuned_at is not None
    trials = client.trials(job_id=job.id, round="search", limit=1000)
    assert len(trials) == job.progress.done
    assert [trial.id for trial in trials] == sorted(trial.id for trial in trials)
    first = client.trials(limit=len(trials) - 1, job_id=job.id, round="search")
    rest = client.trials(cursor=first.next, limit=1, job_id=job.id, round="search")
    assert ([*first, *rest], rest.next) == (list(trials), None)
    assert client.trials(problem="48x48x48", job_id=job.id, round="search", limit=1)[0].problem == job.best[0].problem
    assert client.trials(problem=job.best[1].problem, job_id=job.id, limit=1)[0].problem == job.best[1].problem
    assert not [*client.trials(problem="48x48x49"), *client.bests(problem=49), *client.misses(problem=(1, 2, 3))]
    assert tuned(client).id == job.id


@pytest.mark.slow
def test_every_event_comes_once_however_often_the_stream_is_taken_up(client: Client) -> None:
    job = tuned(client)
    events = list(client.events(job.id))
    assert events[-1].name == "end"
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    middle = ids[len(ids) // 2]
    assert [event.id for event in client.events(job.id, after=middle)] == [number for number in ids if number > middle]
    assert list(client.events(job.id, after=ids[-1])) == []


def test_timed_wait_gives_the_job_as_it_stands(client: Client) -> None:
    job = client.tune([(300, 300, 300)], seconds=60, wait=0.5)
    assert not job.ended
    assert client.extend(job.id, 30.0).id == job.id
    assert client.job(job.id).progress.budget_seconds == 90
    client.cancel(job.id)
    assert client.wait(job.id).state == "cancelled"
    assert client.cancel(job.id).state == "cancelled"
    with pytest.raises(ClientError, match="not ended"):
        client.extend(job.id)


def test_the_devices_and_kernels_are_listed(client: Client) -> None:
    devices, kernels = client.devices(), client.kernels()
    assert devices[0].id == "opencl:0"
    assert devices[0].name
    assert devices[0].limits["threads"] > 0
    assert [kernel.name for kernel in kernels[:2]] == ["naive", "tiled"]
    assert 16 in kernels[1].parameters["BM"]
    assert {one.instructions for one in kernels[1].covers} == {"fma"}
    tensor = next(kernel for kernel in kernels if kernel.name == "double_tensor")
    assert {one.instructions for one in tensor.covers if one.dtype == "float64"} == {"dmma"}


@pytest.mark.slow
def test_many_threads_share_one_client(service: Served) -> None:
    a, b = pair((64, 64), (64, 64), dtype="float32")
    reference, wrong = a.astype(np.float64) @ b, list[int]()

    def work() -> None:
        wrong.extend(number for number in range(10) if not np.allclose(shared.matmul(a, b), reference, atol=1e-3))

    with Client(service.url) as shared:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong


def test_gauges_are_read_by_the_client(client: Client) -> None:
    (now,) = client.device_gauges()
    assert now.device == "opencl:0"
    assert now.memory_used_bytes.value
    assert now.watts.reason == "it is read of GPUs alone"


def test_misses_name_what_was_asked_for_and_not_tuned(client: Client) -> None:
    client.best_config(37, 41, 43, dtype="float64")
    (missed,) = until(lambda: [each for each in client.misses(limit=1000) if each.problem.m == 37], 60, each=0.1)
    assert (missed.problem.dtype, missed.count, missed.match) == ("float64", 1, "default")
    client.dismiss_miss(missed.problem)
    assert not [each for each in client.misses(limit=1000) if each.problem.m == 37]
    with pytest.raises(UnknownMiss):
        client.dismiss_miss(missed.problem)
