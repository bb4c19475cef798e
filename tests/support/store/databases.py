"""Databases for the tests, a real PostgreSQL server among them: a plugin of pytest.

`running` starts a server for whoever wants one by hand.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.store.database import Database, migrate, open_database
from app.store.tables import Base
from tests.support.waiting import until

_STARTING = 60.0  # seconds


def binaries() -> Path | None:
    """The folder of initdb and postgres: Debian's newest, else PATH's, else None."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = shutil.which("initdb")
    folders = [*reversed(debian), *([Path(found).resolve().parent] if found else [])]
    return next((path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()), None)


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server on a free port of 127.0.0.1 until the block ends; its URL, without a database's name."""
    bin_, port, user = binaries(), _free_port(), _user()
    assert bin_ is not None, "there is no PostgreSQL here"
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data, log = folder / "data", folder / "log"
    initdb: list[str | Path] = [
        bin_ / "initdb",
        "-D",
        data,
        "-U",
        "tilewise",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
    settings = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with log.open("wb") as stderr:
        server = subprocess.Popen(
            [*_until_we_die(), bin_ / "postgres", "-D", data, *options], stderr=stderr, user=user, cwd=folder
        )
    try:
        url = f"postgresql://tilewise@127.0.0.1:{port}"
        _wait(server, url, log)
        yield url
    finally:
        server.send_signal(2)  # SIGINT: end the sessions, then stop
        server.wait(30)


def _user() -> str | None:
    """Root may not run the server: Debian's own user does, else nobody."""
    if os.geteuid() != 0:
        return None
    return "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"


def _until_we_die() -> list[str]:
    return ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def answers() -> bool:
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def logged() -> str:
        told = log.read_text()
        assert server.poll() is None, told
        return told

    until(answers, _STARTING, each=0.05, meanwhile=logged)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server that all tests share, without a database's name."""
    if binaries() is None:
        pytest.skip("PostgreSQL's initdb and postgres are neither in /usr/lib/postgresql/*/bin nor on PATH")
    with tempfile.TemporaryDirectory(prefix="tilewise-postgres-") as folder, running(Path(folder)) as url:
        yield url


@contextmanager
def empty_database(server: str) -> Iterator[str]:
    """The URL of a database of a server, which is dropped when the block ends."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield f"{server}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database of its own."""
    with empty_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="module")
def module_postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a database of a module's own, empty at first."""
    with empty_database(postgres_server) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a file that does not exist yet, in a folder that does not either."""
    return f"sqlite:///{tmp_path / 'data' / 'tilewise.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind: what uses this runs on both."""
    url: str = request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param])
    return url


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def shared_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A migrated, open database of each kind, for all tests."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('store')}/tilewise.db"
        else:
            url = stack.enter_context(empty_database(request.getfixturevalue("postgres_server")))
        migrate(url)
        yield stack.enter_context(open_database(url))


@pytest.fixture
def database(shared_database: Database) -> Database:
    """The shared database of each kind, emptied."""

    def clear(session: Session) -> None:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))

    shared_database.write(clear)
    return shared_database
