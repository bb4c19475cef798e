"""What all tests share: services' binaries are compiled once in a run, and no core is busy with nothing."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

# Tests of several folders import it, whichever is collected first.
pytest.register_assert_rewrite("tests.support.devices.process_lifetimes")
# Several processes share each core here: a thread of OpenBLAS that has nothing to do sleeps at once, where it would
# spin for 2^26 cycles after NumPy's import and after each product. Read at NumPy's import, by children too.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
# Hundreds of processes import the same modules, and each worker all tests: whatever else the environment says, they are
# compiled once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What a developer has set for a service of their own is no test's, nor its children's.
for _name in [name for name in os.environ if name.startswith("TILEWISE_")]:
    del os.environ[_name]
# Whose tests share a service that takes seconds to start: one worker has them all. They begin first, the longest before
# the others, so that what is dealt out file by file fills the end.
TOGETHER = ("tests/services/", "tests/api/", "tests/cli/", "tests/client/")
# Marks of what the default run leaves out.
LEFT_OUT = ("cuda", "slow", "sampling", "sweep", "timing", "browser")
# Of the tests that take a second or more a run has one in so many.
_ROTATION = 3
# Files of few long tests that share nothing: given out one by one, and last, they leave no worker idle at the end.
APART = ("tests/tuning/test_recorded_spaces.py", "tests/kernels/test_skinny.py")


def pytest_configure(config: pytest.Config) -> None:
    """Where nothing is timed, OpenBLAS has one thread: several wait for each other busily where cores are shared.

    Read at NumPy's import, too, which no plugin has done by now.
    """
    if "not timing" in config.getoption("markexpr"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Before the workers of xdist start, which are to draw the same.
    os.environ.setdefault("TEST_SEED", str(secrets.randbits(31)))
    if _repeats_failures(config):
        config.option.markexpr = ""


def _repeats_failures(config: pytest.Config) -> bool:
    """Whether this run is --last-failed with failures: all of them are run, for what draws sees them alone."""
    return bool(config.getoption("lf", default=False) and config.cache and config.cache.get("cache/lastfailed", {}))


def pytest_report_header() -> str:
    """What draws the cases of tests that have many."""
    return f"TEST_SEED={os.environ['TEST_SEED']} draws cases"


@pytest.fixture(scope="session", autouse=True)
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of what is compiled, of all workers and of the services that they start: each kernel once in a run.

    TEST_COMPILED names one that several runs share, one after the other or at once.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder inside the run's own
        folder = folder.parent
    compiled = Path(os.environ.get("TEST_COMPILED", folder / "compiled"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWISE_CACHE_DIR", str(compiled))
        yield compiled


@pytest.fixture(scope="session")
def driver() -> None:
    """Skip where no NVIDIA driver is installed; with one, a GPU that does not open is a failure."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no NVIDIA driver: {error}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Where each of several workers is to read all tests: import a part of them first, another than the others do.

    What Python and pytest compile of a module is kept beside it. In a new checkout workers that went through the tests
    in one order would compile each of them at the same time, every one for itself.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not number or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    root, workers = session.config.rootpath, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    files = sorted((root / "tests").rglob("test_*.py"))
    # What a folder's conftest says of assertions in other modules must come before these.
    for file in [*sorted((root / "tests").glob("*/conftest.py")), *files[int(number) :: workers]]:
        with suppress(Exception, pytest.skip.Exception):  # it is told where the module is collected
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before marks are asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark slow the cases and rotating tests that the seed does not draw, unless a test is asked for by its name."""
    if not (any("::" in argument for argument in config.args) or _repeats_failures(config)):
        left = undrawn({item.nodeid: count for item in items if (count := _cases(item))}, os.environ["TEST_SEED"])
        left |= resting([item.nodeid for item in items if item.get_closest_marker("rotating")], os.environ["TEST_SEED"])
        for item in items:
            if item.nodeid in left:
                item.add_marker(pytest.mark.slow)
    yield
    _ordered(config, items)


def _cases(item: pytest.Item) -> int:
    """How many cases of a test are drawn; 0 if all are, or if the default run leaves this one out anyway."""
    mark = item.get_closest_marker("drawn")
    if mark is None or any(item.get_closest_marker(name) for name in LEFT_OUT):
        return 0
    return int(mark.args[0])


def undrawn(counts: Mapping[str, int], seed: str) -> set[str]:
    """Of the cases of each test, by their node ids, those beyond as many as are given for it: the seed draws which."""
    cases: dict[str, list[str]] = {}
    for nodeid in counts:
        cases.setdefault(nodeid.partition("[")[0], []).append(nodeid)
    left: set[str] = set()
    for name, of in cases.items():
        count = max(0, len(of) - counts[of[0]])
        left.update(random.Random(f"{seed} {name}").sample(of, count))  # noqa: S311 - cases, no secrets
    return left


def resting(rotating: Sequence[str], seed: str) -> set[str]:
    """Of the tests that rotate, by their node ids, all cases of those that the seed does not draw: two in three."""
    return {*rotating} - drawn(rotating, 1, _ROTATION, seed)


def _ordered(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Folders that one worker has whole come first, as TOGETHER orders them; TEST_SHARE and TEST_PART leave some."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        items.sort(key=lambda item: rank(item.nodeid))
    share, part = (int(os.environ.get(name, "1")) for name in ("TEST_SHARE", "TEST_PART"))
    if (share > 1 or part > 1) and not _repeats_failures(config):
        kept = drawn([item.nodeid for item in items], share, part, os.environ.get("TEST_SEED", "0"))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]


def drawn(nodeids: Iterable[str], share: int, part: int, seed: str) -> set[str]:
    """Of one in `part` of the tests, one in `share` of the cases, and at least one each, as the seed draws them."""
    cases: dict[str, list[str]] = {}
    for nodeid in nodeids:
        cases.setdefault(nodeid.partition("[")[0], []).append(nodeid)
    kept: set[str] = set()
    names = random.Random(f"{seed} tests").sample(sorted(cases), -(-len(cases) // part))  # noqa: S311 - as below
    for name in names:
        of = cases[name]
        kept.update(random.Random(f"{seed} {name}").sample(of, -(-len(of) // share)))  # noqa: S311 - cases, no secrets
    return kept


def rank(nodeid: str) -> int:
    """The place of a test's folder in TOGETHER, which is behind all of them for a folder that it does not name."""
    return next((place for place, folder in enumerate(TOGETHER) if nodeid.startswith(folder)), len(TOGETHER))


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end of the run: no collection of garbage looks through them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """For all tests, files as `--dist loadfile` has them, folders whose tests share a service, and long tests alone."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - where xdist is in use

    class Folders(LoadFileScheduling):  # type: ignore[misc] # it ships no types
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file in APART:
                return nodeid
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return Folders(config, log) if whole and config.getvalue("dist") == "loadfile" else None
