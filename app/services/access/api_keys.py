"""API keys: made, listed, revoked, and checked in memory."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Final

from app.errors import Invalid, StartRefused, Unauthenticated, UnknownApiKey
from app.services.principal import ADMIN, Principal, Scope, UsageQuota, is_reserved, scopes_of
from app.store.database import Database
from app.store.records import ApiKeyRecord
from app.store.repository import ApiKeyRepository

_PREFIX: Final = "tw_"  # what scanners for leaked keys know one by
_ADMIN_ID: Final = "admin"  # no key has this id: theirs are hexadecimal
SESSION_SECONDS: Final = 12 * 3600
_KEY: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")  # RFC 6750, section 2.1
_NO_KEY: Final = "the key is unknown, expired or revoked"


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a key that holds gives."""

    digest: bytes
    principal: Principal
    expires: float  # seconds since the epoch


class ApiKeys:
    """The keys of one database. A check reads a snapshot that every change replaces: revoking holds at once.

    A token is tw_ID_SECRET; the store has its HMAC-SHA256 under the service's secret, never the token. A key without
    a digest grants scopes to the subject of a client certificate.
    """

    def __init__(self, database: Database, secret: bytes, admin_file: Path | None = None) -> None:
        self._database, self._secret, self._admin = database, secret, _AdminKey(admin_file, secret)
        self.generation = 0  # rises with every change of a key
        self._grants: Mapping[str, _Grant] = {}
        self._certificates: Mapping[str, _Grant] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Read the keys; raises StartRefused if the operator's file has none."""
        self._admin.expect_key()
        with self._lock:
            self._read()

    def refresh(self) -> None:
        """Read again what another service may have changed."""
        with self._lock:
            self._read()

    def create(
        self,
        name: str,
        scopes: frozenset[Scope],
        quota: UsageQuota = UsageQuota(),  # noqa: B008 - it is frozen
        *,
        lifetime: timedelta | None = None,
        certificate: bool = False,
    ) -> tuple[ApiKeyRecord, str | None]:
        """Make a key of a principal; gives its token, which is shown nowhere again, or None for a certificate's.

        Raises Invalid for a name that the service gives principals of its own.
        """
        if is_reserved(name):
            raise Invalid(f"{name!r} is a principal of the service: a key needs another name")
        key_id, now = secrets.token_hex(6), datetime.now(UTC)
        token = None if certificate else f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        record = ApiKeyRecord(
            id=key_id,
            principal=name,
            scopes=tuple(sorted(scopes)),
            quota={key: value for key, value in asdict(quota).items() if value is not None},
            digest=None if token is None else self._digest(token).hex(),
            created_at=now,
            expires_at=None if lifetime is None else now + lifetime,
            revoked_at=None,
        )
        with self._lock:
            self._database.write(lambda session: ApiKeyRepository(session).add(record))
            self._read()
        return record, token

    def list(self) -> list[ApiKeyRecord]:
        """Every key that was ever made, the newest first."""
        return self._database.read(lambda session: ApiKeyRepository(session).all())

    def revoke(self, key_id: str) -> ApiKeyRecord:
        """End a key: the next check refuses it; raises UnknownApiKey."""
        with self._lock:
            now = datetime.now(UTC)
            record = self._database.write(lambda session: ApiKeyRepository(session).revoke(key_id, now))
            if record is None:
                raise UnknownApiKey(f"there is no key {key_id}")
            self._read()
        return record

    def principal_of_token(self, token: str) -> Principal:
        """Whose key it is; raises Unauthenticated."""
        return self._checked(token)[1]

    def principal_of_session(self, session: str) -> Principal:
        """Whose session it is; raises Unauthenticated once it or its key has ended."""
        signed, _, _ = session.rpartition(".")
        key_id, _, expires = signed.partition(".")
        genuine = hmac.compare_digest(self._signed(signed).encode(), session.encode("utf-8", "surrogateescape"))
        if not genuine or int(expires) <= time():
            raise Unauthenticated("the session has ended: log in again")
        return ADMIN if key_id == _ADMIN_ID else self._held(key_id).principal

    def principal_of_certificate(self, subject: str) -> Principal:
        """Whom a client certificate's subject stands for; raises Unauthenticated if no key grants it anything."""
        grant = self._certificates.get(subject)
        if grant is None or grant.expires <= time():
            raise Unauthenticated(f"no key grants the certificate of {subject!r} anything")
        return grant.principal

    def session_of(self, token: str) -> str:
        """A session for a browser's cookie, which ends with its key or SESSION_SECONDS; raises Unauthenticated."""
        key_id, _ = self._checked(token)
        return self._signed(f"{key_id}.{int(time()) + SESSION_SECONDS}")

    def _checked(self, token: str) -> tuple[str, Principal]:
        """The id and the principal of a key's token; raises Unauthenticated."""
        key_id, digest = token[len(_PREFIX) :].partition("_")[0], self._digest(token)
        grant = self._grants.get(key_id)
        if grant is None and self._admin.matches(digest):
            return _ADMIN_ID, ADMIN
        if grant is None or not hmac.compare_digest(grant.digest, digest):
            raise Unauthenticated(_NO_KEY)
        return key_id, self._held(key_id).principal

    def _held(self, key_id: str) -> _Grant:
        """The grant of a key that has neither expired nor been revoked; raises Unauthenticated."""
        grant = self._grants.get(key_id)
        if grant is None or grant.expires <= time():
            raise Unauthenticated(_NO_KEY)
        return grant

    def _signed(self, text: str) -> str:
        """A session's text with its keyed hash; an admin's ends when the operator's file changes."""
        mark = self._admin.digest.hex() if text.startswith(f"{_ADMIN_ID}.") else ""
        return f"{text}.{self._digest(f'session {text} {mark}').hex()}"

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._secret, token.encode("utf-8", "surrogateescape"), "sha256")

    def _read(self) -> None:
        """Replace the snapshot by what the database has."""
        records = self._database.read(lambda session: ApiKeyRepository(session).all())
        holding = [record for record in records if record.revoked_at is None]
        self._grants = {record.id: _grant(record) for record in holding if record.digest is not None}
        self._certificates = {record.principal: _grant(record) for record in holding if record.digest is None}
        self.generation += 1


class _AdminKey:
    """The operator's key in a file, read again once the file has changed."""

    def __init__(self, path: Path | None, secret: bytes) -> None:
        self._path, self._secret = path, secret
        self._seen: tuple[int, int] | None = None
        self._digest = b""

    def expect_key(self) -> None:
        """Raise StartRefused if there is to be a file and it has no key that a header could carry."""
        if self._path is not None and _KEY.fullmatch(self._read()) is None:
            raise StartRefused(f"{self._path} has no key: 16 to 512 letters, digits or -._~+/=, alone in the file")

    def matches(self, digest: bytes) -> bool:
        """Whether this is the digest of the file's key."""
        return bool(self.digest) and hmac.compare_digest(self._digest, digest)

    @property
    def digest(self) -> bytes:
        """The keyed hash of the file's key; empty if there is none."""
        seen = self._stamp()
        if seen != self._seen:
            token = self._read() if seen is not None else ""
            self._digest = hmac.digest(self._secret, token.encode(), "sha256") if token else b""
            self._seen = seen
        return self._digest

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_ino)

    def _read(self) -> str:
        try:
            return "" if self._path is None else self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""


def _grant(record: ApiKeyRecord) -> _Grant:
    expires = record.expires_at.timestamp() if record.expires_at is not None else float("inf")
    principal = Principal(record.principal, scopes_of(record.scopes), UsageQuota(**record.quota))
    return _Grant(bytes.fromhex(record.digest or ""), principal, expires)
