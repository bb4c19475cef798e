"""tilewise keys, without a service and with one that has the database open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.spawn import started
from tests.support.cli.command_line import Run

pytest_plugins = ["tests.support.cli.command_line"]


def keys(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "200", "TILEWISE_DATA_DIR": str(folder / "data")}
    env |= {f"TILEWISE_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "app.cli", "keys", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def told(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_key_that_was_made_before_the_first_start_opens_the_service_until_it_is_revoked(tmp_path: Path) -> None:
    made = keys(tmp_path, "create", "ann", "--scopes", "read,manage", "--expires", "90d", "--quota", "jobs=4")
    key = made.stdout.strip()
    assert key.startswith("tw_"), made.stderr
    (listed,) = told(keys(tmp_path, "list", "--json"))
    assert (listed["principal"], listed["scopes"], listed["quota"]) == ("ann", ["manage", "read"], {"jobs": 4})
    assert key.split("_", 2)[2] not in keys(tmp_path, "list").stdout
    socket = tmp_path / "socket"
    with (
        started(tmp_path / "data", devices="none", auth="keys", uds=str(socket)) as service,
        httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        assert client.get("/jobs").status_code == 200
        # By HTTP with the key of the environment, and by the socket as its user.
        second = told(keys(tmp_path, "create", "ben", "--json", url=service.url, key=key))
        assert second["key"].startswith("tw_")
        assert {one["principal"] for one in told(keys(tmp_path, "list", "--json", uds=str(socket)))} == {"ann", "ben"}
        assert told(keys(tmp_path, "revoke", listed["id"], "--json", uds=str(socket)))["revoked_at"] is not None
        assert client.get("/jobs").status_code == 401
        refused = keys(tmp_path, "list", url=service.url, key=key)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "unknown, expired or revoked" in refused.stderr


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
