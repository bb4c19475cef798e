"""Backups: one tar file of the database, as of one moment, and of the secret that hashes of keys are keyed with."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from sqlalchemy import URL

from app.errors import BackupBroken, SchemaUnknown, StartRefused
from app.store.engines import is_sqlite, normalised
from app.store.folders import sync_folder
from app.store.lock import owned
from app.store.schema import current_revision, revisions
from app.store.tables import Base

_MANIFEST: Final = "manifest.json"
_SQLITE, _POSTGRESQL, _SECRET = "tilewise.db", "tilewise.pgdump", "secret"
_MEMBERS: Final = frozenset({_SQLITE, _POSTGRESQL, _SECRET})
_FORMAT: Final = 1
_VERSIONS: Final = "alembic_version"
_CHUNK: Final = 2**20
_LARGEST_MANIFEST: Final = 2**16


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself: its schema's revision, and the SHA-256 of each member."""

    format: int
    version: str
    created_at: str
    revision: str
    sha256: dict[str, str]

    @property
    def database(self) -> str:
        """The member that is the database."""
        return _SQLITE if _SQLITE in self.sha256 else _POSTGRESQL


def backup(url: str, secret: Path, target: Path, version: str) -> Manifest:
    """Write a database, while it is used, to a new file for its owner only; raises StartRefused, FileExistsError.

    SQLite: its online backup, which sees one transaction's state (sqlite.org/backup.html). PostgreSQL: pg_dump's
    snapshot.
    """
    parsed, revision = normalised(url), current_revision(url)
    if revision is None:
        raise StartRefused(f"there is no database at {parsed.render_as_string()}")
    if target.exists():
        raise FileExistsError(17, "there is such a file already", str(target))
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".backup-") as folder:
        members = [_copied(parsed, Path(folder))]
        if secret.exists():
            members.append(Path(shutil.copy(secret, Path(folder) / _SECRET)))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = Manifest(_FORMAT, version, now, revision, {path.name: _sha256(path) for path in members})
        _write(Path(folder) / "backup.tar", manifest, members)
        os.link(Path(folder) / "backup.tar", target)  # whole, or not there
    sync_folder(target.absolute().parent)
    return manifest


def verify(source: Path) -> Manifest:
    """Read all of a backup; raises BackupBroken if a byte of it is not what was written, or it is newer than this."""
    with _unpacked(source) as (manifest, folder):
        _expect_known(manifest, source)
        if manifest.database == _SQLITE:
            _expect_sound(folder / _SQLITE, manifest)
    return manifest


def restore(source: Path, url: str, secret: Path, *, replace: bool = False) -> Manifest:
    """Make a backup the database; a SQLite file that was there is kept beside it as .before-restore.

    Raises DatabaseOwned while a service has it open; BackupBroken; SchemaUnknown if the backup, or the database that
    is there, is newer than this program; StartRefused if there is a database and it is not to be replaced.
    """
    parsed = normalised(url)
    with owned(url, f"pid {os.getpid()} (tilewise restore)", make=False), _unpacked(source) as (manifest, folder):
        _expect_known(manifest, source)
        _expect_replaceable(url, replace)
        if is_sqlite(parsed) != (manifest.database == _SQLITE):
            raise StartRefused(f"{source} is a backup of another kind of database than {parsed.render_as_string()}")
        if is_sqlite(parsed):
            _expect_sound(folder / _SQLITE, manifest)
            _install(folder / _SQLITE, Path(str(parsed.database)))
        else:
            _replace_tables(parsed, folder)
        if (folder / _SECRET).exists():
            _install(folder / _SECRET, secret)
    return manifest


def _copied(url: URL, folder: Path) -> Path:
    """A copy of the database, of one moment."""
    if not is_sqlite(url):
        _run(["pg_dump", "--format=custom", "--no-owner", "--file", str(folder / _POSTGRESQL)], url)
        return folder / _POSTGRESQL
    target = folder / _SQLITE
    source = f"{Path(str(url.database)).as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(target)) as copy:
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").close()  # one file, with no log beside it
    except sqlite3.Error as error:
        raise StartRefused(f"{url.database} cannot be read: {error}") from error
    return target


def _write(path: Path, manifest: Manifest, members: list[Path]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w+b") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            content = json.dumps(asdict(manifest), indent=1).encode()
            head = tarfile.TarInfo(_MANIFEST)
            head.size, head.mode = len(content), 0o600
            tar.addfile(head, io.BytesIO(content))
            for member in members:
                tar.add(member, member.name, filter=_anonymous)
        file.flush()
        os.fsync(file.fileno())


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode, member.uid, member.gid, member.uname, member.gname = 0o600, 0, 0, "", ""
    return member


@contextmanager
def _unpacked(source: Path) -> Iterator[tuple[Manifest, Path]]:
    """A backup's manifest, and a folder with its members, each as its sum says; raises BackupBroken."""
    with tempfile.TemporaryDirectory(prefix="tilewise-") as folder:
        try:
            with tarfile.open(source, "r:") as tar:
                manifest = _manifest(tar, source)
                for name, expected in manifest.sha256.items():
                    _extract(tar, name, Path(folder) / name)
                    if _sha256(Path(folder) / name) != expected:
                        raise BackupBroken(f"{source} is broken: {name} is not what was written")
        except (tarfile.TarError, KeyError, ValueError, TypeError, EOFError) as error:
            raise BackupBroken(f"{source} is no whole backup: {error}") from error
        yield manifest, Path(folder)


def _manifest(tar: tarfile.TarFile, source: Path) -> Manifest:
    file = tar.extractfile(_MANIFEST)
    manifest = Manifest(**json.loads(file.read(_LARGEST_MANIFEST) if file is not None else b""))
    if manifest.format != _FORMAT or not manifest.sha256.keys() <= _MEMBERS or manifest.database not in manifest.sha256:
        raise BackupBroken(f"{source} has a form that this version does not know: restore it with {manifest.version}")
    return manifest


def _extract(tar: tarfile.TarFile, name: str, target: Path) -> None:
    file: IO[bytes] | None = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    with file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy, _CHUNK)


def _expect_known(manifest: Manifest, source: Path) -> None:
    _expect_revision(manifest.revision, str(source))


def _expect_replaceable(url: str, replace: bool) -> None:
    found = current_revision(url)
    if found is None:
        return
    _expect_revision(found, "the database that is there")
    if not replace:
        raise StartRefused(f"there is a database at {url}: --replace moves it aside")


def _expect_revision(revision: str, whose: str) -> None:
    known = revisions()
    if revision not in known:
        newest = known[-1]
        message = f"{whose} has schema {revision}, newer than this program's {newest}: use the newer program"
        raise SchemaUnknown(message, found=[revision], known=newest)


def _expect_sound(database: Path, manifest: Manifest) -> None:
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]
            found += [f"a reference is broken: {row}" for row in connection.execute("PRAGMA foreign_key_check")]
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise BackupBroken(f"the backup's database cannot be read: {error}") from error
    if found != ["ok"] or revision != (manifest.revision,):
        raise BackupBroken(f"the backup's database is broken: {'; '.join(found)}, schema {revision}")


def _install(source: Path, target: Path) -> None:
    """Move a file to its place in one step, and what was there, with SQLite's log, aside."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.restored")
    shutil.copyfile(source, draft)
    draft.chmod(0o600)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    for suffix in ("", "-wal", "-shm"):
        old = target.with_name(target.name + suffix)
        if old.exists():
            old.replace(target.with_name(f"{target.name}.before-restore{suffix}"))
    draft.replace(target)
    sync_folder(target.parent)


def _replace_tables(url: URL, folder: Path) -> None:
    """Drop every table of ours, and make those of the dump, in one transaction."""
    script = folder / "restore.sql"
    dropped = "".join(f'DROP TABLE IF EXISTS "{name}" CASCADE;\n' for name in (*Base.metadata.tables, _VERSIONS))
    dump = _output(["pg_restore", "--no-owner", "--file=-", str(folder / _POSTGRESQL)], {})
    script.write_bytes(dropped.encode() + dump)
    _run(["psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--single-transaction", f"--file={script}"], url)


def _run(command: Sequence[str], url: URL) -> None:
    """Run one of PostgreSQL's own programs on a database; raises StartRefused with what it says."""
    name = url.set(drivername="postgresql", query={}, password=None).render_as_string(hide_password=False)
    _output([*command, "--dbname", name], {} if url.password is None else {"PGPASSWORD": str(url.password)})


def _output(command: Sequence[str], env: Mapping[str, str]) -> bytes:
    try:
        ran = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise StartRefused(f"{command[0]} is not installed: PostgreSQL's client programs have it") from error
    if ran.returncode:
        raise StartRefused(f"{command[0]} failed: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
