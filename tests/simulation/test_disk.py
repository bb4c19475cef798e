"""The disk that loses power keeps what POSIX promises, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.simulation.disk import SECTOR, Cut, Disk
from tests.simulation.system_calls import Moment, SystemCall

ROOT = Path("/data")
NOTHING = Cut(kept=0.0, torn=False, in_order=False, garbage=0.0)
ALL = Cut(kept=1.0, torn=False, in_order=False, garbage=0.0)


def called(name: str, path: str | None = None, *texts: str, tail: str = "", value: int = 0) -> SystemCall:
    return SystemCall(name, f"..., {tail}", value, 3, path, tuple(text.encode() for text in texts))


def opened(name: str) -> SystemCall:
    return called("openat", None, f"/data/{name}", tail="O_RDWR|O_CREAT, 0644", value=3)


def wrote(name: str, content: str, at: int = 0) -> SystemCall:
    return called("pwrite64", f"/data/{name}", content, tail=f"{len(content)}, {at}", value=len(content))


def synced(name: str = "") -> SystemCall:
    return called("fsync", f"/data/{name}".rstrip("/"))


def left(calls: Iterable[SystemCall], cut: Cut, folder: Path, seed: int = 0) -> dict[str, str]:
    disk = Disk(ROOT)
    for call in calls:
        disk.replay(Moment(call, is_end=False))
        disk.replay(Moment(call, is_end=True))
    folder.mkdir(exist_ok=True)
    disk.after(cut, random.Random(seed), folder)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([opened("a"), wrote("a", "new"), synced("a"), synced()], {"a": "new"}),
        ([opened("a"), wrote("a", "new"), synced("a")], {}),
        ([opened("a"), wrote("a", "new"), synced()], {"a": ""}),
        ([opened("a"), synced(), wrote("a", "old"), synced("a"), wrote("a", "new")], {"a": "old"}),
        (
            [opened("a"), wrote("a", "1"), synced("a"), synced(), called("rename", None, "/data/a", "/data/b")],
            {"a": "1"},
        ),
        ([opened("a"), wrote("a", "1"), synced("a"), synced(), called("unlink", None, "/data/a")], {"a": "1"}),
        (
            [called("mkdir", None, "/data/sub"), opened("sub/a"), wrote("sub/a", "1"), synced("sub/a"), synced("sub")],
            {},
        ),
        (
            [opened("a"), wrote("a", "123"), synced("a"), synced(), called("ftruncate", "/data/a", tail="1")],
            {"a": "123"},
        ),
    ],
)
def test_only_what_was_synced_with_its_name_is_left(
    calls: list[SystemCall], found: dict[str, str], tmp_path: Path
) -> None:
    assert left(calls, NOTHING, tmp_path) == found


def test_all_may_be_left_too(tmp_path: Path) -> None:
    calls = [opened("a"), wrote("a", "new"), called("rename", None, "/data/a", "/data/b"), wrote("b", "w", 2)]
    assert left(calls, ALL, tmp_path) == {"b": "new"[:2] + "w"}


def test_a_write_is_torn_between_its_sectors_and_nowhere_else(tmp_path: Path) -> None:
    size, torn = 8 * SECTOR, Cut(kept=0.5, torn=True, in_order=False, garbage=0.0)
    calls = [opened("a"), wrote("a", "o" * size), synced("a"), synced(), wrote("a", "n" * (size - 100), 100)]
    seen = set()
    for seed in range(20):
        content = left(calls, torn, tmp_path / str(seed), seed)["a"]
        assert len(content) == size
        assert content[:100] == "o" * 100
        sectors = [content[max(100, at) : at + SECTOR] for at in range(0, size, SECTOR)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        seen.add(content)
    assert len(seen) > 10


def test_a_sync_covers_what_was_written_before_it_began(tmp_path: Path) -> None:
    disk, sync = Disk(ROOT), synced("a")
    for call in (opened("a"), wrote("a", "old"), synced()):
        disk.replay(Moment(call, is_end=False))
        disk.replay(Moment(call, is_end=True))
    disk.replay(Moment(sync, is_end=False))
    late = wrote("a", "new")
    disk.replay(Moment(late, is_end=False))
    disk.replay(Moment(late, is_end=True))
    disk.replay(Moment(sync, is_end=True))
    disk.after(NOTHING, random.Random(0), tmp_path)
    assert (tmp_path / "a").read_text() == "old"
