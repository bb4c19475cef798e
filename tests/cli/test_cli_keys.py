"""tilewise keys, without a service and with one that has the database open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.spawn import started
from tests.support.cli.command_line import Ran, Run

pytest_plugins = ["tests.support.cli.command_line"]


Keys = Callable[..., Ran]


@pytest.fixture
def keys(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Keys:
    """Run `tilewise keys` on a database of this test's own, with settings of one call."""

    def ran(*words: str, **settings: str) -> Ran:
        with monkeypatch.context() as environment:
            for name, value in {"data_dir": str(tmp_path / "data"), **settings}.items():
                environment.setenv(f"TILEWISE_{name.upper()}", value)
            return run("keys", *words)

    return ran


def told(ran: Ran) -> Any:
    assert ran.code == 0, ran.err
    return ran.json


@pytest.mark.slow
def test_a_key_that_was_made_before_the_first_start_opens_the_service_until_it_is_revoked(
    keys: Keys, tmp_path: Path
) -> None:
    made = keys("create", "ann", "--scopes", "read,manage", "--expires", "90d", "--quota", "jobs=4")
    key = made.out.strip()
    assert key.startswith("tw_"), made.err
    (listed,) = told(keys("list", "--json"))
    assert (listed["principal"], listed["scopes"], listed["quota"]) == ("ann", ["manage", "read"], {"jobs": 4})
    assert key.split("_", 2)[2] not in keys("list").out
    socket = tmp_path / "socket"
    with (
        started(tmp_path / "data", devices="none", auth="keys", uds=str(socket)) as service,
        httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        assert client.get("/jobs").status_code == 200
        # By HTTP with the key of the environment, and by the socket as its user.
        second = told(keys("create", "ben", "--json", url=service.url, key=key))
        assert second["key"].startswith("tw_")
        assert {one["principal"] for one in told(keys("list", "--json", uds=str(socket)))} == {"ann", "ben"}
        assert told(keys("revoke", listed["id"], "--json", uds=str(socket)))["revoked_at"] is not None
        assert client.get("/jobs").status_code == 401
        refused = keys("list", url=service.url, key=key)
        assert (refused.code, refused.out) == (1, "")
        assert "unknown, expired or revoked" in refused.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("create",), "create needs a name"),
        (("list", "ann"), "list takes no name"),
        (("create", "ann", "--expires", "soon"), "a time is such as 90d"),
        (("create", "ann", "--quota", "jobs"), "a quota is NAME=NUMBER"),
        (("create", "ann", "--scopes", "everything"), "scopes"),
        (("create", "ann", "--quota", "wishes=3"), "wishes"),
        (("revoke", "none"), "there is no key none"),
    ],
)
def test_what_makes_no_sense_is_said(run: Run, words: tuple[str, ...], reason: str) -> None:
    ran = run("keys", *words)
    assert ran.code in {1, 2}
    assert reason in ran.err
