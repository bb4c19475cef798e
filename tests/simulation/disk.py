"""A disk that loses power: what was not synced is lost, kept, reordered or torn, sector by sector, as a seed has it.

Nothing is taken for granted but what POSIX says: fsync of a file makes its content durable, and fsync of a folder its
entries. A file whose folder was not synced may be gone; a rename may not have happened; a sector that was being written
may be old, new or garbage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from tests.simulation.system_calls import Moment, SystemCall

SECTOR: Final = 512
_SYNCS: Final = frozenset({"fsync", "fdatasync"})
_WRITES: Final = frozenset({"write", "pwrite64"})
_SEES_NOTHING: Final = frozenset({"lseek"})


@dataclass(eq=False)
class Change:
    """A change that is not durable yet: bytes at an offset, a new size, or entries of a folder (None: removed)."""

    at: int = 0
    content: bytes = b""
    size: int | None = None
    entries: dict[str, Node | None] = field(default_factory=dict)
    is_made: bool = False


@dataclass(eq=False)
class Node:
    """A file or a folder: what is durable of it, and the changes since, oldest first."""

    is_folder: bool = False
    mode: int = 0o644  # of a file, as it was made with
    content: bytearray = field(default_factory=bytearray)
    entries: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def settle(self, changes: list[Change]) -> None:
        """Make changes durable."""
        for change in changes:
            apply(change, self.content, self.entries)
            self.changes.remove(change)


def apply(change: Change, content: bytearray, entries: dict[str, Node]) -> None:
    """Apply a whole change."""
    if change.size is not None:
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
    elif change.content:
        _overwrite(content, change.at, change.content)
    for name, node in change.entries.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _overwrite(content: bytearray, at: int, piece: bytes) -> None:
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(piece)] = piece


@dataclass(frozen=True, slots=True)
class Cut:
    """How a cut treats what was not synced: the chance that a change is kept, and that a torn sector is garbage.

    `in_order`: a change is kept only if all before it are, `torn`: the chance is a sector's.
    """

    kept: float
    torn: bool
    in_order: bool
    garbage: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Cut:
        """One at random: everything lost, everything kept, or something between."""
        kept = rng.choice((0.0, 1.0, 0.5, 0.9, 0.1))
        torn = rng.random() < 0.6
        return cls(kept, torn, rng.random() < 0.3, rng.choice((0.0, 0.0, 0.05, 0.3)) if torn else 0.0)


class Disk:
    """The files below `root`, an empty folder that is durable, as calls change them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writes = self.syncs = 0
        self._top = Node(is_folder=True)
        self._live: dict[str, Node] = {str(root): self._top}  # as processes see it
        self._places: dict[int, tuple[str, int]] = {}  # path and offset by descriptor
        self._made: dict[int, list[tuple[Node, list[Change]]]] = {}  # by the identity of a call under way

    def replay(self, moment: Moment) -> None:
        """Take note of a call's beginning or end; raises NotImplementedError for one that is not known."""
        call = moment.call
        if not moment.is_end:
            self._made[id(call)] = list(self._begin(call))
            return
        for node, changes in self._made.pop(id(call)):
            if call.name in _SYNCS:
                node.settle([change for change in changes if change in node.changes])
            for change in changes:
                change.is_made = True

    def _begin(self, call: SystemCall) -> Iterator[tuple[Node, list[Change]]]:
        """The nodes that a call concerns, with its changes; of a sync, those that it makes durable."""
        if call.name in _SYNCS:
            self.syncs += 1
            node = self._live.get(call.path or "")
            if node is not None:
                yield node, [change for change in node.changes if change.is_made]
            return
        for node, change in self._changes(call):
            self.writes += 1
            node.changes.append(change)
            yield node, [change]

    def _changes(self, call: SystemCall) -> Iterator[tuple[Node, Change]]:
        if call.name in _WRITES:
            yield from self._written(call)
        elif call.name == "ftruncate":
            yield from self._truncated(call.path, call.number(-1))
        elif call.name == "openat":
            yield from self._opened(call)
        elif call.name in {"rename", "renameat", "renameat2"}:
            yield self._renamed(*(text.decode() for text in call.texts))
        elif call.name in {"link", "linkat"}:
            yield self._added(call.texts[1].decode(), self._live[call.texts[0].decode()])
        elif call.name in {"unlink", "unlinkat"}:
            yield self._removed(call.texts[0].decode())
        elif call.name in {"mkdir", "mkdirat"}:
            yield self._added(call.texts[0].decode(), Node(is_folder=True))
        elif call.name == "lseek":
            self._places[call.descriptor or 0] = call.path or "", call.value
        elif call.name not in _SEES_NOTHING:
            raise NotImplementedError(f"{call.name}({call.arguments[:200]})")

    def _written(self, call: SystemCall) -> Iterator[tuple[Node, Change]]:
        node, content = self._live.get(call.path or ""), call.texts[0][: call.value]
        if node is None:
            return
        if call.name == "pwrite64":
            yield node, Change(call.number(-1), content)
            return
        path, at = self._places.get(call.descriptor or 0, (call.path, 0))
        at = at if path == call.path else 0
        if at < 0:
            at = len(self._now(node))
        else:
            self._places[call.descriptor or 0] = path or "", at + len(content)
        yield node, Change(at, content)

    def _truncated(self, path: str | None, size: int) -> Iterator[tuple[Node, Change]]:
        node = self._live.get(path or "")
        if node is not None:
            yield node, Change(size=size)

    def _opened(self, call: SystemCall) -> Iterator[tuple[Node, Change]]:
        path = call.texts[0].decode()
        if not PurePosixPath(path).is_relative_to(self.root):
            return
        self._places[call.value] = path, -1 if "O_APPEND" in call.arguments else 0
        if "O_CREAT" in call.arguments and path not in self._live:
            yield self._added(path, Node(mode=int(call.arguments.rpartition(", ")[2], 8)))
        elif "O_TRUNC" in call.arguments:
            yield from self._truncated(path, 0)

    def _added(self, path: str, node: Node) -> tuple[Node, Change]:
        folder, name = self._place(path)
        self._live[path] = node
        return folder, Change(entries={name: node})

    def _removed(self, path: str) -> tuple[Node, Change]:
        folder, name = self._place(path)
        del self._live[path]
        return folder, Change(entries={name: None})

    def _renamed(self, before: str, after: str) -> tuple[Node, Change]:
        folder, name = self._place(after)
        source, old = self._place(before)
        if source is not folder:
            raise NotImplementedError(f"{before} moves to another folder")
        self._live[after] = self._live.pop(before)
        return folder, Change(entries={old: None, name: self._live[after]})

    def _place(self, path: str) -> tuple[Node, str]:
        at = PurePosixPath(path)
        return self._live[str(at.parent)], at.name

    def _now(self, node: Node) -> bytearray:
        content = bytearray(node.content)
        for change in node.changes:
            apply(change, content, {})
        return content

    def after(self, cut: Cut, rng: random.Random, folder: Path) -> None:
        """Write what is left after a cut of power into an empty folder."""
        _write(self._top, cut, rng, folder)


def _write(node: Node, cut: Cut, rng: random.Random, path: Path) -> None:
    content, entries = bytearray(node.content), dict(node.entries)
    for change in node.changes:
        whole = change.size is not None or bool(change.entries) or not cut.torn
        if not whole:
            _tear(change, content, cut, rng)
        elif rng.random() < cut.kept:
            apply(change, content, entries)
        if cut.in_order and rng.random() >= cut.kept:
            break
    if not node.is_folder:
        path.write_bytes(content)
        path.chmod(node.mode)
        return
    path.mkdir(exist_ok=True)
    for name, entry in entries.items():
        _write(entry, cut, rng, path / name)


def _tear(change: Change, content: bytearray, cut: Cut, rng: random.Random) -> None:
    """Write some of a change's sectors, as the file has them, some of them garbage."""
    at, end = change.at, change.at + len(change.content)
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        drawn = rng.random()
        if drawn < cut.kept * (1 - cut.garbage):
            _overwrite(content, at, change.content[at - change.at : stop - change.at])
        elif drawn < cut.kept:
            _overwrite(content, at, rng.randbytes(stop - at))
        at = stop
