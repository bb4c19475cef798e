from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.devices import worker_entry
from app.devices.compiler_pool import Compilers
from app.devices.fleet import Fleet, _children, _start, open_fleet
from app.devices.lease import Priority
from app.devices.sandbox import Support
from app.errors import ChildTimedOut, Closing, CompileFailed, NoDevice, StartRefused, UnknownDevice
from kernels import CATALOGUE
from kernels.launch import Build
from kernels.problem import Problem
from tests.support.devices import child_functions, compiler_functions, device_functions
from tests.support.devices.child_factory import Making
from tests.support.devices.process_lifetimes import alive, end_and_expect_no_children, start_parent
from tests.support.waiting import until


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def fleet(cache_dir: Path) -> Iterator[Fleet]:
    with open_fleet("opencl", cache_dir, 2**24) as fleet:
        yield fleet


@pytest.mark.rotating
def test_the_cpu_is_a_device_with_two_children_and_a_vendor(fleet: Fleet) -> None:
    unit = fleet.unit("opencl:0")
    assert unit is fleet.unit()
    assert unit.device.platform == "opencl"
    assert unit.vendor.name
    assert unit.products.pid != unit.trials.pid
    assert None not in {unit.products.pid, unit.trials.pid}


def test_an_unknown_device_is_refused_by_its_name(fleet: Fleet) -> None:
    with pytest.raises(UnknownDevice, match="cuda:7"):
        fleet.unit("cuda:7")


def test_children_read_and_write_the_slab(fleet: Fleet) -> None:
    region = fleet.slab.lend(10)
    view = fleet.slab.view(region)
    view[:10] = bytes(range(10))
    for child in (fleet.unit().products, fleet.unit().trials):
        child.call(device_functions.add_one_in_the_slab, region.offset, 10)
    assert bytes(view[:10]) == bytes(range(2, 12))
    fleet.slab.release(region)


def test_what_a_function_keeps_is_there_at_the_next_call(fleet: Fleet) -> None:
    products = fleet.unit().products
    assert products.call(device_functions.remember, "one") is None
    assert products.call(device_functions.remember, "two") == "one"


def test_preparing_a_build_for_the_cpu_compiles_nothing(fleet: Fleet) -> None:
    fleet.unit().prepare(Build("broken", "#error", "matmul", ()))
    assert fleet.compilers is not None
    assert fleet.compilers.pids == []


@pytest.mark.rotating
def test_a_kernel_that_never_ends_is_killed_and_the_device_serves_again(fleet: Fleet) -> None:
    unit = fleet.unit()
    before = unit.trials.pid
    assert before is not None
    with pytest.raises(ChildTimedOut) as failure:
        unit.trials.call(device_functions.run_an_endless_kernel, 0.5)
    assert failure.value.facts["stage"] == "launch"
    assert not alive(before)
    unit.products.call(child_functions.lease_once, priority=Priority.PRODUCT)
    assert unit.trials.call(device_functions.remember, "new") is None


def test_product_is_served_while_a_trial_is_outside_the_lease(fleet: Fleet) -> None:
    unit = fleet.unit()
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(unit.trials.call, child_functions.sleep, 0.8)
        unit.products.call(child_functions.lease_once, priority=Priority.PRODUCT)
        assert not trial.done()
        trial.result()


def test_none_opens_no_device_and_says_so(tmp_path: Path) -> None:
    with open_fleet("none", tmp_path, 2**20) as fleet:
        assert fleet.units == ()
        with pytest.raises(NoDevice, match="no device was asked for"):
            fleet.unit()


@pytest.mark.rotating
def test_a_device_that_is_not_there_is_a_reason_and_the_others_open(tmp_path: Path, cache_dir: Path) -> None:
    with open_fleet("opencl:5", tmp_path, 2**20) as fleet:
        assert fleet.reasons == ("opencl:5: there is no such device",)
        with pytest.raises(NoDevice, match="opencl:5"):
            fleet.unit()
    with open_fleet("cuda:63,opencl:0", cache_dir, 2**20) as fleet:
        assert [unit.device.id for unit in fleet.units] == ["opencl:0"]
        assert fleet.reasons[0].startswith("cuda:63: ")


@pytest.mark.parametrize("devices", ["gpu", "cuda:", "cuda:x", "auto,opencl", "opencl:0:1", "none,none"])
def test_a_setting_that_means_nothing_refuses_to_start(devices: str, tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="devices are"), open_fleet(devices, tmp_path, 2**20):
        pass


@pytest.mark.rotating
def test_closing_a_fleet_leaves_no_process_and_no_descriptor(cache_dir: Path) -> None:
    before = child_functions.descriptors()
    with open_fleet("opencl", cache_dir, 2**20) as fleet:
        unit = fleet.unit()
        pids = [pid for pid in (unit.products.pid, unit.trials.pid) if pid is not None]
        assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert child_functions.descriptors() <= before  # what an earlier test left may be closed meanwhile


class TestCompilers:
    @pytest.fixture
    def compilers(self, tmp_path: Path) -> Iterator[Compilers]:
        pytest.importorskip("cupy")
        compilers = Compilers(tmp_path)
        yield compilers
        compilers.close()

    def test_a_build_is_compiled_in_another_process_and_found_on_disk(
        self, compilers: Compilers, fleet: Fleet, tmp_path: Path
    ) -> None:
        problem = Problem(64, 64, 64)
        kernel = CATALOGUE["tiled"]
        build = kernel.launch(kernel.default(problem, fleet.unit().device), problem, fleet.unit().device).build
        compilers.compile(build, "sm_90", 60)
        assert sorted(path.suffix for path in (tmp_path / "cuda").iterdir()) == [".cubin", ".json"]

    def test_a_failed_compilation_travels_with_the_compilers_words(self, compilers: Compilers) -> None:
        with pytest.raises(CompileFailed, match="nothing here"):
            compilers.compile(Build("broken", "#error nothing here\n", "matmul", ()), "sm_90", 60)

    @pytest.mark.slow
    def test_a_compiler_that_takes_too_long_is_killed_and_replaced(self, compilers: Compilers, tmp_path: Path) -> None:
        body = "".join(f"x = x * x + {number}.0f; y += __sinf(x) * y;" for number in range(20_000))
        text = 'extern "C" __global__ void matmul(float *a, float *b, float *c) { float x = *a, y = *b;' + body
        with pytest.raises(ChildTimedOut) as failure:
            compilers.compile(Build("endless", text + "*c = y; }", "matmul", ()), "sm_90", 1.0)
        assert failure.value.facts == {"stage": "compile", "deadline": 1.0}
        compilers.compile(Build("plain", 'extern "C" __global__ void matmul() {}', "matmul", ()), "sm_90", 60)
        assert list(tmp_path.rglob("*.cubin"))

    def test_build_asked_for_by_many_is_compiled_once(self, compilers: Compilers, tmp_path: Path) -> None:
        build = plain("shared")
        asked = [compilers.start(build, "sm_90") for _ in range(8)]
        assert len({id(job) for job in asked}) == 1
        assert asked[0].result() is None
        written = next(tmp_path.rglob("*.cubin")).stat().st_mtime_ns
        compilers.compile(build, "sm_90")
        assert next(tmp_path.rglob("*.cubin")).stat().st_mtime_ns == written

    def test_builds_that_nobody_has_begun_can_be_given_up(self, compilers: Compilers, tmp_path: Path) -> None:
        builds = [plain(f"number_{number}") for number in range(6 + compilers.width)]
        jobs = [compilers.start(build, "sm_90") for build in builds]
        compilers.cancel(builds, "sm_90")
        assert jobs[-1].cancelled()
        for job in jobs[: compilers.width]:
            if not job.cancelled():
                job.result()
        assert len(list(tmp_path.rglob("*.cubin"))) <= 2 * compilers.width
        compilers.compile(builds[-1], "sm_90")  # and asked for again

    def test_a_build_that_failed_is_tried_anew(self, compilers: Compilers) -> None:
        broken = Build("broken", "#error nothing here\n", "matmul", ())
        for _ in range(2):
            with pytest.raises(CompileFailed, match="nothing here"):
                compilers.compile(broken, "sm_90")

    def test_compilers_start_when_needed_and_no_more_than_work(self, compilers: Compilers) -> None:
        assert compilers.pids == []
        for number in range(2):
            compilers.compile(plain(f"one_{number}"), "sm_90")
        assert len(compilers.pids) == 1

    @pytest.mark.rotating
    def test_the_first_builds_get_the_compilers_that_were_started_ahead(self, tmp_path: Path) -> None:
        pytest.importorskip("cupy")
        with closing(Compilers(tmp_path, width=3)) as compilers:
            compilers.warm(2)
            until(lambda: compilers.ready == 2)
            before = compilers.pids
            assert len(before) == 2
            assert all("libnvrtc-builtins" in Path(f"/proc/{pid}/maps").read_text("utf-8") for pid in before)
            wait([compilers.start(plain(f"ahead_{number}"), "sm_90") for number in range(2)])
            assert compilers.pids == before

    def test_a_build_takes_the_compiler_that_is_being_started(self, tmp_path: Path) -> None:
        pytest.importorskip("cupy")
        with closing(Compilers(tmp_path, width=2)) as compilers:
            compilers.warm(1)
            compilers.compile(plain("meanwhile"), "sm_90")
            assert len(compilers.pids) == compilers.ready == 1

    def test_compilers_close_while_they_are_being_started(self, tmp_path: Path) -> None:
        compilers = Compilers(tmp_path, width=3)
        compilers.warm()
        until(lambda: compilers.pids)
        pids = compilers.pids
        compilers.close()
        assert compilers.pids == []
        assert not any(alive(pid) for pid in pids)
        assert not any(thread.name == "starting compilers" for thread in threading.enumerate())

    def test_a_compiler_that_loads_nothing_ahead_compiles_all_the_same(self, make: Making, tmp_path: Path) -> None:
        pytest.importorskip("cupy")
        child = make(compiler_functions.compiler_of_no_architecture, tmp_path)
        child.call(worker_entry.compile_cubin, plain("after_all"), "sm_90", tmp_path, 60.0)
        assert list(tmp_path.rglob("*.cubin"))
        assert child.generation == 1

    def test_a_compiler_is_given_several_times_what_the_slowest_took(self, compilers: Compilers) -> None:
        assert compilers.deadline == 60
        compilers.compile(plain("first"), "sm_90")
        assert 10 <= compilers.deadline < 60

    def test_what_waits_when_the_compilers_close_is_told_so(self, tmp_path: Path) -> None:
        compilers = Compilers(tmp_path)
        jobs = [compilers.start(plain(f"late_{number}"), "sm_90") for number in range(3 + compilers.width)]
        compilers.close()
        assert jobs[-1].cancelled()
        with pytest.raises(Closing):
            compilers.compile(plain("too_late"), "sm_90")


def plain(name: str) -> Build:
    """A build of its own for each name: what is said in comments makes no difference."""
    return Build(name, f'extern "C" __global__ void matmul(int *{name}) {{ *{name} = 1; }}', "matmul", ())


def test_on_a_cpu_compiling_and_measuring_take_turns(fleet: Fleet) -> None:
    unit = fleet.unit()
    broken = Build("broken", "#error", "matmul", ())
    assert unit.width == 1
    assert unit.ahead(broken).result() is None
    unit.abandon([broken])


PARENT = """
import sys, threading, time
from pathlib import Path
from tests.support.devices import device_functions
from app.devices.fleet import open_fleet
from app.devices.lease import Priority
from app.devices.sandbox import Support
with open_fleet(sys.argv[2], Path(sys.argv[1]), 2**20) as fleet:
    unit = fleet.unit()
    assert not {"cupy", "cupy_backends", "pyopencl"} & set(sys.modules), "the parent imported a device library"
    mapped = open("/proc/self/maps").read()
    assert not any(name in mapped for name in ("libcuda", "libnvrtc", "OpenCL", "pocl")), "the parent loaded one"
    threading.Thread(target=unit.trials.call, args=(device_functions.run_an_endless_kernel, 50.0), daemon=True).start()
    while (ticket := unit.lease.try_acquire(Priority.PRODUCT)) is not None:
        unit.lease.leave(ticket)
        time.sleep(0.05)
    time.sleep(0.1)
    print(unit.products.pid, unit.trials.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.rotating
def test_parent_loads_no_device_library_and_child_dies_with_it(cache_dir: Path) -> None:
    end_and_expect_no_children(start_parent(PARENT, str(cache_dir), "opencl"), signal.SIGKILL)


def test_an_exclusive_device_has_one_child_for_both(fleet: Fleet, cache_dir: Path) -> None:
    device = replace(fleet.unit().device, exclusive=True)
    with ExitStack() as stack:
        _, products, trials = _children(device, cache_dir, fleet.slab, stack, Support())
        assert trials is products
        assert _start(products, trials) == fleet.unit().vendor


@pytest.fixture(scope="module")
def cuda_fleet(driver: None, cache_dir: Path) -> Iterator[Fleet]:
    del driver
    with open_fleet("auto", cache_dir, 2**24) as fleet:
        yield fleet


@pytest.mark.cuda
@pytest.mark.usefixtures("driver")
class TestCuda:
    def test_auto_opens_every_cuda_device(self, cuda_fleet: Fleet) -> None:
        assert {unit.device.platform for unit in cuda_fleet.units} == {"cuda"}
        device = cuda_fleet.unit("cuda:0").device
        assert device.architecture.startswith("sm_")
        assert device.uuid.startswith(("GPU-", "MIG-"))

    def test_compilers_are_started_with_the_fleet(self, cuda_fleet: Fleet) -> None:
        compilers = cuda_fleet.compilers
        assert compilers is not None
        until(lambda: compilers.pids)

    def test_the_driver_tells_each_gpu_s_gauges(self, cuda_fleet: Fleet) -> None:
        assert cuda_fleet.gpus is not None
        readings = {one.uuid: one for one in cuda_fleet.gpus.read(0.0)}
        for unit in cuda_fleet.units:
            if not unit.device.mig:
                reading = readings[unit.device.uuid]
                assert reading.busy is not None
                assert 0 <= reading.busy <= 1
                assert (reading.sm_mhz or 0) > 100
                assert (reading.memory_mhz or 0) > 100
                assert 2**20 < (reading.memory_used_bytes or 0) <= 1.1 * unit.device.memory_bytes

    def test_a_prepared_build_is_only_loaded_by_the_device_child(self, cuda_fleet: Fleet, cache_dir: Path) -> None:
        unit, problem = cuda_fleet.unit(), Problem(100, 70, 30)
        kernel = CATALOGUE["tiled"]
        launch = kernel.launch(kernel.default(problem, unit.device), problem, unit.device)
        assert unit.width == unit.compilers.width
        unit.ahead(launch.build).result()
        unit.prepare(launch.build)
        before = set((cache_dir / "cuda").iterdir())
        for child in (unit.products, unit.trials):
            seconds, registers = child.call(device_functions.multiply_once, launch)
            assert seconds < 1
            assert registers
        assert set((cache_dir / "cuda").iterdir()) == before

    def test_a_kernel_that_never_ends_is_killed_and_the_device_serves_again(self, cuda_fleet: Fleet) -> None:
        unit = cuda_fleet.unit()
        before = unit.trials.pid
        assert before is not None
        with pytest.raises(ChildTimedOut):
            unit.trials.call(device_functions.run_an_endless_kernel, 0.5)
        assert not alive(before)
        started = time.monotonic()
        unit.products.call(child_functions.lease_once, priority=Priority.PRODUCT)
        unit.trials.call(device_functions.remember, "new")
        assert time.monotonic() - started < 5

    def test_a_computing_child_dies_with_its_parent(self, cache_dir: Path) -> None:
        end_and_expect_no_children(start_parent(PARENT, str(cache_dir), "cuda"), signal.SIGKILL)
