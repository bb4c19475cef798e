"""Imports belong to whoever made them, count against a quota, and expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.devices.fleet import Fleet
from app.devices.slab import Slab
from app.errors import QuotaExceeded, UnknownImport
from app.interchange.formats import FileSubject, write
from app.interchange.results import ConfigResult, ResultsFile, TuningResults
from app.services.best.answer import BestAnswer
from app.services.best.lookup import BestConfigs
from app.services.best.quarantine import Quarantine
from app.services.interchange.imports import ImportLimits, ImportService
from app.services.principal import ANONYMOUS, Principal
from app.store.database import migrate, open_database
from kernels import CATALOGUE
from kernels.problem import Problem
from tests.support.kernels.devices import PROCESSOR

ANN, BOB = Principal("ann"), Principal("bob")
PROBLEM = Problem(64, 48, 32)
DAYS = 0.2 / 86400  # 200 ms
Opened = Callable[[ImportLimits], ImportService]


@pytest.fixture
def imports(tmp_path: Path) -> Iterator[Opened]:
    """Imports in a database of their own, with these limits."""
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    with ExitStack() as stack:
        database = stack.enter_context(open_database(url))
        quarantine = Quarantine.load(database)
        best = BestConfigs.load(Fleet((), Slab(4096)), database, quarantine)
        yield lambda limits: ImportService(database, best, quarantine, limits)


def bundle(problem: Problem = PROBLEM) -> bytes:
    """A file of two configs, of which 8 x 16 x 8 is faster."""
    found = ConfigResult((8, 16, 8), 0.25, (0.25,)), ConfigResult((8, 8, 8), 0.5, (0.5,))
    space = TuningResults(PROCESSOR.model, "tiled", ("BM", "BN", "BK"), found, problem, (64, 48, 32), {})
    return b"".join(write("bundle", ResultsFile((space,)), "a test", lambda *_: []))


def answered(imports: ImportService, principal: Principal) -> str:
    """How a problem that was not tuned here is answered."""
    kernel = CATALOGUE["tiled"]
    config = kernel.default(PROBLEM, PROCESSOR)
    untuned = BestAnswer(PROCESSOR, PROBLEM, "tiled", config, kernel.launch(config, PROBLEM, PROCESSOR), "default")
    return imports.answer(untuned, principal).match


def test_an_import_is_seen_and_used_by_its_owner_alone(imports: Opened) -> None:
    opened = imports(ImportLimits(2**20, None))
    record, _ = opened.add("bundle", bundle(), FileSubject(), ANN)
    assert [one.id for one in opened.list(ANN)] == [record.id]
    assert opened.list(BOB) == []
    for call in (opened.get, opened.delete, opened.file):
        with pytest.raises(UnknownImport):
            call(record.id, BOB)
    assert (answered(opened, ANN), answered(opened, BOB)) == ("nearest", "default")
    assert (opened.concerns(ANN), opened.concerns(BOB)) == (True, False)
    assert [dict(config) for _, config in opened.fastest("ann", PROCESSOR, PROBLEM)] == [{"BM": 8, "BN": 16, "BK": 8}]
    assert opened.fastest("bob", PROCESSOR, PROBLEM) == []
    assert len(opened.priors("ann", "tiled", PROBLEM)) == 1
    assert opened.priors("bob", "tiled", PROBLEM) == []
    assert answered(opened, ANONYMOUS) == "nearest"  # where nobody has a name, all of it is everybody's
    opened.delete(record.id, ANN)
    assert (opened.list(ANN), answered(opened, ANN)) == ([], "default")


def test_imports_of_one_principal_have_so_many_bytes(imports: Opened) -> None:
    opened = imports(ImportLimits(2**20, None))
    first, _ = opened.add("bundle", bundle(), FileSubject(), ANN)
    tight = imports(ImportLimits(2 * first.nbytes, None))
    second, _ = tight.add("bundle", bundle(), FileSubject(), ANN)
    with pytest.raises(QuotaExceeded) as refused:
        tight.add("bundle", bundle(), FileSubject(), ANN)
    told = {"limit": 2 * first.nbytes, "used": first.nbytes + second.nbytes, "size": first.nbytes}
    assert {name: refused.value.facts[name] for name in told} == told
    assert len(tight.list(ANN)) == 2  # nothing of it was stored
    tight.add("bundle", bundle(), FileSubject(), BOB)
    tight.delete(first.id, ANN)
    tight.add("bundle", bundle(), FileSubject(), ANN)


def test_an_import_that_is_over_is_neither_seen_nor_used_nor_counted(imports: Opened) -> None:
    lasting = imports(ImportLimits(2**20, None))
    kept, _ = lasting.add("bundle", bundle(), FileSubject(), BOB)
    opened = imports(ImportLimits(kept.nbytes, DAYS))
    record, _ = opened.add("bundle", bundle(), FileSubject(), ANN)
    assert record.expires_at is not None
    time.sleep(0.3)
    assert opened.list(ANN) == []
    with pytest.raises(UnknownImport):
        opened.get(record.id, ANN)
    assert answered(opened, ANN) == "default"
    assert opened.fastest("ann", PROCESSOR, PROBLEM) == []
    assert opened.priors("ann", "tiled", PROBLEM) == []
    opened.add("bundle", bundle(), FileSubject(), ANN)  # its bytes are free again
    assert [one.id for one in opened.list(BOB)] == [kept.id]
