"""tilewise keys: create, list and revoke."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Protocol

import typer
from rich.table import Table

from app.cli import render
from app.cli.options import Json, Url, settings, usage
from app.cli.session import Remote, address_of
from app.errors import DatabaseOwned
from app.settings import Settings
from tilewise import ApiKey
from tilewise.decoding import from_json

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SCOPES: Final = "read,tune,multiply"
_QUOTA: Final = (
    "requests_per_second, share, bytes_in_flight, tune_seconds_per_hour, product_seconds_per_hour, jobs, resident_bytes"
)


class _Keys(Protocol):
    """The client's methods on keys."""

    def create_key(
        self, principal: str, *, scopes: list[str], seconds: int | None, certificate: bool, quota: dict[str, float]
    ) -> ApiKey:
        """Make a key."""
        ...

    def list_keys(self) -> list[ApiKey]:
        """List them."""
        ...

    def revoke_key(self, key_id: str) -> ApiKey:
        """End one."""
        ...


def keys(
    action: Annotated[Literal["create", "list", "revoke"], typer.Argument(help="create, list or revoke.")],
    name: Annotated[str, typer.Argument(help="Of create: the principal; of revoke: the key's id.")] = "",
    scopes: Annotated[str, typer.Option(help="Of read, tune, multiply, manage and metrics, with commas.")] = _SCOPES,
    expires: Annotated[str | None, typer.Option(help="After such a time: 90d, 12h, 30m; by default never.")] = None,
    quota: Annotated[list[str] | None, typer.Option(help=f"NAME=NUMBER, once for each: {_QUOTA}.")] = None,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="Make no key: the principal is a client certificate's subject.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make, list and revoke API keys, with a service or without one. A key is shown once, as it is made."""
    out, _ = render.consoles()
    if (action == "list") == bool(name):
        raise typer.BadParameter("list takes no name" if name else f"{action} needs a name")
    with usage():
        asked: dict[str, Any] = {
            "scopes": [each.strip() for each in scopes.split(",")],
            "seconds": None if expires is None else _seconds(expires),
            "quota": dict(map(_limit, quota or ())),
        }
    with _opened(settings(), url) as service:
        if action == "create":
            made = [service.create_key(name, certificate=certificate, **asked)]
        else:
            made = service.list_keys() if action == "list" else [service.revoke_key(name)]
    if as_json:
        render.print_json(made if action == "list" else made[0])
    elif action == "create" and made[0].key is not None:
        print(made[0].key)
    else:
        out.print(_table(made))


class _Stored:
    """The keys of a database that no service has open."""

    def __init__(self, service: Any) -> None:
        self._keys = service

    def create_key(
        self, principal: str, *, scopes: list[str], seconds: int | None, certificate: bool, quota: dict[str, float]
    ) -> ApiKey:
        """Make a key."""
        from app.api.params import validated  # noqa: PLC0415 - only where there is no service
        from app.api.routes.keys import KeyRequest, NewApiKey  # noqa: PLC0415
        from app.services.principal import UsageQuota, scopes_of  # noqa: PLC0415

        members = {"scopes": scopes, "seconds": seconds, "certificate": certificate, "quota": quota}
        asked = validated(KeyRequest, {"principal": principal, **members})
        lifetime = None if asked.seconds is None else timedelta(seconds=asked.seconds)
        limits = UsageQuota(**asked.quota.model_dump())
        record, token = self._keys.create(
            asked.principal, scopes_of(asked.scopes), limits, lifetime=lifetime, certificate=asked.certificate
        )
        return from_json(ApiKey, NewApiKey.of(record, key=token).model_dump(mode="json"))

    def list_keys(self) -> list[ApiKey]:
        """List them."""
        return [self._told(record) for record in self._keys.list()]

    def revoke_key(self, key_id: str) -> ApiKey:
        """End one."""
        return self._told(self._keys.revoke(key_id))

    @staticmethod
    def _told(record: Any) -> ApiKey:
        from app.api.routes import keys as routes  # noqa: PLC0415

        return from_json(ApiKey, routes.ApiKey.of(record).model_dump(mode="json"))


@contextmanager
def _opened(chosen: Settings, url: str | None) -> Iterator[_Keys]:
    """The service at `url`, or the database, or the service that has it open: by its Unix socket if it has one."""
    if url is None:
        try:
            with _database(chosen) as stored:
                yield stored
                return
        except DatabaseOwned as owned:
            address = address_of(str(owned.facts.get("owner", "")))
            if address is None:
                raise
            url = f"unix://{chosen.uds}" if chosen.uds is not None and chosen.uds.exists() else address
    with usage():
        client = Remote(url)
    with client:
        yield client


@contextmanager
def _database(chosen: Settings) -> Iterator[_Stored]:
    from app.services.access.api_keys import ApiKeys  # noqa: PLC0415 - a command that speaks HTTP need not load it
    from app.services.access.secret import read_secret  # noqa: PLC0415
    from app.store.database import migrate, open_database, owned  # noqa: PLC0415

    with owned(chosen.database, f"pid {os.getpid()} (tilewise keys)"):
        migrate(chosen.database)
        with open_database(chosen.database) as database:
            keys = ApiKeys(database, read_secret(chosen.secret))
            keys.start()
            yield _Stored(keys)


def _seconds(text: str) -> int:
    """A duration such as 90d in seconds; raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS:
        raise ValueError(f"a time is such as 90d, 12h, 30m or 60s, got {text!r}")
    return int(number) * _UNITS[unit]


def _limit(text: str) -> tuple[str, float]:
    """NAME=NUMBER; raises ValueError."""
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"a quota is NAME=NUMBER, got {text!r}") from None
    return name, int(value) if value.is_integer() else value


def _table(found: list[ApiKey]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("id", "principal", "scopes", "made", "expires", "revoked", "quota"):
        table.add_column(column, overflow="fold")
    for one in found:
        moments = [moment and f"{moment:%Y-%m-%d %H:%M}" for moment in (one.created_at, one.expires_at, one.revoked_at)]
        quota = ", ".join(f"{name}={value:g}" for name, value in one.quota.items())
        table.add_row(one.id, one.principal, " ".join(one.scopes), *(moment or "" for moment in moments), quota)
    return table
