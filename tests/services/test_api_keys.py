"""API keys are shown once, hold while they should, and their hashes tell nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import time

import pytest

from app.errors import Invalid, StartRefused, Unauthenticated, UnknownApiKey
from app.services.access import api_keys
from app.services.access.api_keys import ApiKeys
from app.services.access.secret import read_secret
from app.services.principal import ADMIN, Principal, UsageQuota, scopes_of
from app.store.database import Database, migrate, open_database

READ = scopes_of(["read"])
QUOTA = UsageQuota(requests_per_second=5, jobs=2)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    with open_database(url) as database:
        yield database


@pytest.fixture
def keys(database: Database, tmp_path: Path) -> ApiKeys:
    (tmp_path / "admin").write_text("another-key-of-the-operator")
    keys = ApiKeys(database, b"s" * 32, tmp_path / "admin")
    keys.start()
    return keys


def made(keys: ApiKeys, name: str = "ann", *, lifetime: timedelta | None = None) -> tuple[str, str]:
    record, token = keys.create(name, READ, QUOTA, lifetime=lifetime)
    assert token is not None
    return record.id, token


def test_a_token_is_its_principal_with_scopes_and_quota(keys: ApiKeys) -> None:
    _, token = made(keys)
    assert keys.principal_of_token(token) == Principal("ann", READ, QUOTA)


@pytest.mark.parametrize("name", ["anonymous", "idle", "admin", "uid-0"])
def test_no_key_takes_a_name_of_the_services_own_principals(keys: ApiKeys, name: str) -> None:
    with pytest.raises(Invalid, match="another name"):
        keys.create(name, READ)
    assert keys.list() == []


def test_the_store_has_no_token(keys: ApiKeys, database: Database, tmp_path: Path) -> None:
    _, token = made(keys)
    secret = token.split("_", 2)[2]
    database.close()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"ann" in written
    assert secret.encode() not in written


def test_a_changed_token_is_refused(keys: ApiKeys) -> None:
    key_id, token = made(keys)
    other = f"tw_{key_id}_{'A' * 43}"
    for wrong in (token[:-1], token + "x", other, token.upper(), "", "tw__", "tw_" + key_id, f" {token}", "\udcff"):
        with pytest.raises(Unauthenticated):
            keys.principal_of_token(wrong)


def test_a_key_of_another_secret_is_refused(keys: ApiKeys, database: Database) -> None:
    _, token = made(keys)
    others = ApiKeys(database, b"t" * 32)
    others.start()
    with pytest.raises(Unauthenticated):
        others.principal_of_token(token)


def test_a_revoked_key_is_refused_at_once_and_its_successor_is_not(keys: ApiKeys) -> None:
    key_id, token = made(keys)
    session = keys.session_of(token)
    _, successor = made(keys)
    keys.revoke(key_id)
    with pytest.raises(Unauthenticated):
        keys.principal_of_token(token)
    with pytest.raises(Unauthenticated):
        keys.principal_of_session(session)
    assert keys.principal_of_token(successor).name == "ann"
    first = keys.list()[1].revoked_at
    assert keys.revoke(key_id).revoked_at == first
    with pytest.raises(UnknownApiKey):
        keys.revoke("none")


def test_an_expired_key_is_refused(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = made(keys, lifetime=timedelta(hours=1))
    session = keys.session_of(token)
    now = time()
    monkeypatch.setattr("app.services.access.api_keys.time", lambda: now + 3601)
    for check, shown in ((keys.principal_of_token, token), (keys.principal_of_session, session)):
        with pytest.raises(Unauthenticated):
            check(shown)


def test_keys_are_there_after_a_restart(keys: ApiKeys, database: Database) -> None:
    _, token = made(keys)
    again = ApiKeys(database, b"s" * 32)
    again.start()
    assert again.principal_of_token(token).name == "ann"


def test_a_session_is_no_token_and_a_token_no_session(keys: ApiKeys) -> None:
    _, token = made(keys)
    session = keys.session_of(token)
    assert keys.principal_of_session(session).name == "ann"
    with pytest.raises(Unauthenticated):
        keys.principal_of_token(session)
    with pytest.raises(Unauthenticated):
        keys.session_of(session)
    for wrong in (token, session[:-1], session.replace(".", "x"), "admin.99999999999." + "0" * 64, "", "a.b.c"):
        with pytest.raises(Unauthenticated):
            keys.principal_of_session(wrong)


def test_a_session_ends_by_itself(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    session = keys.session_of(made(keys)[1])
    now = time()
    monkeypatch.setattr("app.services.access.api_keys.time", lambda: now + api_keys.SESSION_SECONDS + 1)
    with pytest.raises(Unauthenticated, match="log in again"):
        keys.principal_of_session(session)


def test_the_operators_file_is_a_key_as_long_as_it_says_so(keys: ApiKeys, tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated):
        keys.principal_of_token("operators-own-key")
    (tmp_path / "admin").write_text("operators-own-key\n")
    assert keys.principal_of_token("operators-own-key") == ADMIN
    session = keys.session_of("operators-own-key")
    assert keys.principal_of_session(session) == ADMIN
    (tmp_path / "new").write_text("another")
    (tmp_path / "new").rename(tmp_path / "admin")
    with pytest.raises(Unauthenticated):
        keys.principal_of_token("operators-own-key")
    with pytest.raises(Unauthenticated):
        keys.principal_of_session(session)
    (tmp_path / "admin").write_text("")
    with pytest.raises(Unauthenticated):
        keys.principal_of_token("")


def test_a_certificate_needs_a_grant(keys: ApiKeys) -> None:
    with pytest.raises(Unauthenticated):
        keys.principal_of_certificate("CN=ann")
    record, token = keys.create("CN=ann", READ, certificate=True)
    assert token is None
    assert keys.principal_of_certificate("CN=ann") == Principal("CN=ann", READ)
    for wrong in (f"tw_{record.id}_", f"tw_{record.id}_x"):
        with pytest.raises(Unauthenticated):
            keys.principal_of_token(wrong)
    keys.revoke(record.id)
    with pytest.raises(Unauthenticated):
        keys.principal_of_certificate("CN=ann")


def test_the_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = read_secret(path)
    assert len(secret) == 32
    assert read_secret(path) == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "mode", "reason"), [(b"s" * 32, 0o640, "others may read"), (b"s", 0o600, "1 bytes")]
)
def test_a_secret_that_is_none_ends_the_start(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(StartRefused, match=reason):
        read_secret(path)


@pytest.mark.parametrize(
    "content", [None, "", "short", "two words in the file", "key-with-\N{GREEK SMALL LETTER MU}-key"]
)
def test_an_operators_file_without_a_key_ends_the_start(
    database: Database, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "admin").write_text(content)
    with pytest.raises(StartRefused, match="has no key"):
        ApiKeys(database, b"s" * 32, tmp_path / "admin").start()
