"""Nodes of a Ray cluster on one machine are killed and frozen while products are made and shapes are tuned."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.errors import ChildLost, TilewiseError
from app.main import opened
from app.services.jobs.service import ENDED
from app.services.principal import ANONYMOUS
from app.services.service import Service
from app.services.tuning.request import TuneSpec
from app.settings import Settings
from app.tuning.budget import Budget
from kernels.problem import Problem
from tests.support.cluster.history import TrialHistory
from tests.support.cluster.local_cluster import LocalCluster, local_cluster
from tests.support.waiting import until

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    # Ray's own of its processes, which it does not wait for.
    pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed file <_io.*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*:ResourceWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("a", "b") as cluster:
        yield cluster


@pytest.fixture
def service(cluster: LocalCluster, tmp_path: Path) -> Iterator[Service]:
    settings = Settings(data_dir=tmp_path, ray=cluster.address, devices="opencl", slab_bytes=2**26)
    with opened(settings, "a test") as service:
        service.defaults.start()
        for unit in service.fleet.units:
            service.defaults.await_settled(unit, lambda: False)
        yield service


def made(service: Service, device: str | None, seed: int) -> str:
    """A product on a device, or any: it is right. Gives the device that made it."""
    rng = np.random.default_rng(seed)
    with service.matmul.reserve(Problem(m=96, n=80, k=64), device_id=device) as buffers:
        buffers.a[...] = rng.integers(-8, 8, buffers.a.shape)
        buffers.b[...] = rng.integers(-8, 8, buffers.b.shape)
        buffers.c[...] = np.nan
        product = service.matmul.multiply(buffers, device)
        assert np.array_equal(buffers.c, buffers.a @ buffers.b)
        return product.device.id


def test_each_node_makes_products_until_it_is_killed_and_again_once_it_is_back(
    cluster: LocalCluster, service: Service
) -> None:
    assert [unit.device.id for unit in service.fleet.units] == ["a:opencl:0", "b:opencl:0", "head:opencl:0"]
    for unit in service.fleet.units:
        assert made(service, unit.device.id, 1) == unit.device.id
    stopping, errors, counts = threading.Event(), list[TilewiseError](), list[str]()

    def go_on() -> None:
        seed = 0
        while not stopping.is_set():
            seed += 1
            try:
                counts.append(made(service, None, seed))
            except TilewiseError as error:
                errors.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = len(counts)
    cluster.kill("a")
    until(lambda: not service.fleet.unit("a:opencl:0").takes_products)
    until(lambda: len(counts) > before + 60)
    stopping.set()
    for thread in threads:
        thread.join()
    assert not errors, "every product was made, on another node where need be"
    with pytest.raises(ChildLost, match="node is lost"):
        made(service, "a:opencl:0", 2)
    assert not service.quarantine.entries(service.fleet.unit("a:opencl:0").device), "no config is to blame"
    cluster.add("a")
    until(lambda: service.fleet.unit("a:opencl:0").takes_products)
    assert made(service, "a:opencl:0", 3) == "a:opencl:0"


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_shape_whose_node_is_lost_goes_on_elsewhere_from_what_was_saved(
    cluster: LocalCluster, service: Service, how: str
) -> None:
    spec = TuneSpec(
        (Problem(m=160, n=96, k=128),), devices=("b:opencl:0",), kernels=("tiled",), budget=Budget(trials=24)
    )
    job = service.tuning.submit(spec, ANONYMOUS)
    history = TrialHistory(service, job.id)
    until(lambda: history.look() >= 3)
    cluster.kill("b") if how == "killed" else cluster.signal("b", signal.SIGSTOP)
    until(lambda: history.look() >= 0 and service.jobs.get(job.id).state in ENDED)
    assert service.jobs.get(job.id).state == "succeeded"
    history.look()
    history.check()
    ended = history.look()
    if how == "killed":
        cluster.add("b")
    else:
        cluster.signal("b", signal.SIGCONT)
        assert history.look() == ended, "what thawed has written nothing"
    until(lambda: service.fleet.unit("b:opencl:0").takes_products)
    assert made(service, "b:opencl:0", 4) == "b:opencl:0"
    assert history.look() == ended
