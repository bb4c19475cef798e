"""Hundreds of configs at random a kernel: compiled, run on the processor, and on a GPU where there is one.

Of kernels that no processor runs one in five is interpreted, for a small problem.

`pytest -m sweep -n 0` checks 500 a kernel, or TEST_SWEEP_COUNT; what it finds is kept in the folder TEST_SWEEP,
or pytest's cache, and not checked again unless it changes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import CATALOGUE
from kernels.kernel import Kernel
from tests.support.kernels.pocl_runner import queue
from tests.support.kernels.random_samples import DEVICES, Sample, expect_products, places, sample, seed
from tests.support.kernels.sweep import GPU, INTERPRETER, Crew, Outcome, Sweep, on_backend, summary

COUNT = int(os.environ.get("TEST_SWEEP_COUNT", "500"))


def has_gpu() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def here(kernel: Kernel) -> list[str]:
    """Where a kernel can be checked on this machine."""
    found = [*places(kernel), INTERPRETER]
    return [*found, GPU] if "cuda" in kernel.platforms and has_gpu() else found


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> Sweep:
    folder = os.environ.get("TEST_SWEEP")
    if folder is None:
        assert request.config.cache is not None
        folder = str(request.config.cache.mkdir("sweep"))
    return Sweep(Path(folder), seed())


@pytest.mark.sweep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_config_that_no_rule_refuses_compiles_and_is_right(
    name: str, sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("app.devices.cuda")
    queue()
    outcomes = sweep.run(CATALOGUE[name], COUNT, here(CATALOGUE[name]))
    counts = summary(name, outcomes)
    (sweep.folder / f"{name}.txt").write_text(counts + "\n", encoding="utf-8")
    with capsys.disabled():
        print(f"\n{counts}")
    assert [f"{each.place} {each.sample}: {each.fault}" for each in outcomes if each.fault is not None] == []


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_and_checks_nothing_twice(tmp_path: Path) -> None:
    pytest.importorskip("app.devices.cuda")
    queue()
    kernel, where = CATALOGUE["naive"], ["sm_90", "opencl"]

    def stop(_: Outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sweep(tmp_path, "7").run(kernel, 2, where, stop)
    (first,) = Sweep(tmp_path, "another seed is not taken").known(kernel)
    with (tmp_path / "naive.jsonl").open("a", encoding="utf-8") as records:
        records.write('{"place": "sm_9')  # as a stop in the middle of a line leaves it
    outcomes = Sweep(tmp_path, "8").run(kernel, 2, where)
    kept = Sweep(tmp_path, "9").known(kernel)
    assert [each.fault for each in outcomes] == [None] * 4
    assert len(kept) == len({(each.place, each.digest) for each in kept}) == 4
    assert kept[0] == first
    assert "sm_90        2 right    0 faulty" in summary("naive", outcomes)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    queue()
    crew = Crew(tmp_path, on_gpu=False)
    yield crew
    crew.close()


LAST = "WRITE(c0, THREAD_Y * n + THREAD_X, sum);"
WIDE = 2  # the number of a sample in float64


def with_last(one: Sample, line: str) -> Sample:
    """A sample of naive with another last line."""
    text = one.launch.build.text
    assert text.count(LAST) == 1
    build = replace(one.launch.build, text=text.replace(LAST, line))
    return replace(one, launch=replace(one.launch, build=build))


@pytest.mark.slow
def test_failure_belongs_to_its_sample_and_the_sweep_goes_on(crew: Crew) -> None:
    pytest.importorskip("app.devices.cuda")
    for place, line, fault in (
        ("sm_90", "nonsense;", "nonsense"),
        ("opencl", f"if (BLOCK + THREAD_X + THREAD_Y > 0) {LAST}", "NaN for 1 element"),
        ("opencl", f"{LAST} c[-1] = 1;", "C was written before its start"),
        ("opencl", "c0[(INDEX)1 << 44] = sum;", "died during check"),
    ):
        one = sample(CATALOGUE["naive"], DEVICES[place], WIDE, "7")
        found = crew.outcome(place, 0, with_last(one, line))
        assert found.fault is not None
        assert fault in found.fault
        assert crew.outcome(place, 0, one).fault is None


@pytest.mark.rotating
def test_a_backends_products_are_compared_and_what_is_around_them_watched(tmp_path: Path) -> None:
    queue()
    from app.devices.opencl import OpenCLBackend  # noqa: PLC0415 - only where there is one

    backend = OpenCLBackend("opencl:0", tmp_path)
    one = sample(CATALOGUE["naive"], backend.device, WIDE, "7")
    expect_products(one, on_backend(backend, one.launch))
    past = with_last(one, f"{LAST} c[m * n * {one.launch.problem.batch}] = 1;")
    with pytest.raises(AssertionError, match="C was written past its end"):
        expect_products(past, on_backend(backend, past.launch))
