"""A service that lets nobody in without a key, on a real socket: who may do what, and what is whose."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started, started
from tests.support.waiting import until

ADMIN = "operators-own-key"
EYE = np.eye(4, dtype=np.float32)
RAW = {"Content-Type": "application/octet-stream"}
SHAPE = "m=4&n=4&k=4&dtype=float32"


@dataclass(frozen=True)
class Guarded:
    """A running service, and what was told of it."""

    service: Started
    folder: Path

    def as_(self, key: str | None) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.service.url, headers=headers, timeout=30)

    def key(self, principal: str, *scopes: str, **members: Any) -> str:
        asked = {"principal": principal, **members} | ({"scopes": scopes} if scopes else {})
        with self.as_(ADMIN) as admin:
            answer = admin.post("/keys", json=asked)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])

    def audit(self) -> list[dict[str, Any]]:
        time.sleep(0.1)
        return [json.loads(line) for line in (self.folder / "data" / "audit.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "admin").write_text(ADMIN + "\n")
    settings = {"auth": "keys", "admin_key_file": str(folder / "admin"), "uds": str(folder / "socket")}
    with started(folder / "data", devices="opencl", **settings) as service:
        running = Guarded(service, folder)
        with running.as_(None) as client:
            until(
                lambda: client.get("/health/ready").status_code == 200, 90, each=0.05, meanwhile=service.log.read_text
            )
        yield running


def exchanged(service: Started, head: str) -> bytes:
    """All that the service says to a head whose body never comes."""
    port = int(service.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"{head}\r\nHost: localhost:{port}\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(2**16), b""))


@pytest.mark.rotating
def test_every_documented_operation_needs_a_key_before_its_body(guarded: Guarded) -> None:
    with guarded.as_(ADMIN) as admin:
        paths = admin.get("/openapi.json").json()["paths"]
    asked = 0
    for path, operations in paths.items():
        for method in operations.keys() & {"get", "post", "put", "delete"}:
            is_public = path in {"/health/live", "/health/ready", "/login", "/logout"}
            head = f"{method.upper()} {path.replace('{', '').replace('}', '')} HTTP/1.1\r\nContent-Length: 1000000"
            for more in ("", "\r\nAuthorization: Bearer tw_0_wrong"):
                if not is_public:
                    answer = exchanged(guarded.service, head + more)
                    assert answer.startswith(b"HTTP/1.1 401"), (method, path, answer[:200])
                    asked += 1
    assert asked > 80


@pytest.mark.parametrize("more", ["Transfer-Encoding: chunked", "Content-Length: 64\r\nExpect: 100-continue"])
def test_a_stranger_is_told_so_and_never_asked_for_the_body(guarded: Guarded, more: str) -> None:
    answer = exchanged(guarded.service, f"POST /matmul?{SHAPE} HTTP/1.1\r\n{more}")
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"100 Continue" not in answer
    assert b'\r\nwww-authenticate: Bearer realm="tilewise"\r\n' in answer.lower().replace(b"bearer", b"Bearer")


def test_a_connection_goes_on_after_a_refusal(guarded: Guarded) -> None:
    key = guarded.key("ann")
    with guarded.as_(key) as client:
        for _ in range(3):
            assert client.get("/best-config?m=64&n=64&k=64", headers={"Authorization": "Bearer x"}).status_code == 401
            assert client.get("/best-config?m=64&n=64&k=64").status_code == 200


def test_a_key_does_what_its_scopes_say_and_its_bearer_multiplies(guarded: Guarded) -> None:
    with guarded.as_(guarded.key("ann", "multiply")) as client:
        answer = client.post(f"/matmul?{SHAPE}", content=EYE.tobytes() * 2, headers=RAW)
        assert answer.status_code == 200
        assert answer.content == EYE.tobytes()
        assert client.get("/bests").status_code == 403
        assert client.post("/tune", json={"shapes": ["32"], "budget": {"trials": 1}}).json()["code"] == "forbidden"


def test_a_profile_is_for_whoever_may_manage(guarded: Guarded) -> None:
    order = {"m": 16, "n": 24, "k": 8}
    with guarded.as_(guarded.key("ann", "read", "tune", "multiply")) as client:
        refused = client.post("/profile", json=order)
        assert (refused.status_code, refused.json()["code"], refused.json()["scope"]) == (403, "forbidden", "manage")
    with guarded.as_(guarded.key("eve", "manage", "tune")) as client:
        answer = client.post("/profile", json=order)
        assert answer.status_code == 202, answer.text
        assert client.delete(f"/jobs/{answer.json()['id']}").status_code in {200, 202}


def test_a_revoked_key_is_refused_at_once(guarded: Guarded) -> None:
    with guarded.as_(ADMIN) as admin, guarded.as_(None) as client:
        made = admin.post("/keys", json={"principal": "ann"}).json()
        client.headers["Authorization"] = f"Bearer {made['key']}"
        assert client.get("/devices").status_code == 200
        assert admin.delete(f"/keys/{made['id']}").json()["revoked_at"] is not None
        assert client.get("/devices").status_code == 401
        assert admin.delete("/keys/none").status_code == 404
        listed = admin.get("/keys")
        assert made["id"] in {one["id"] for one in listed.json()["keys"]}
        assert made["key"].split("_", 2)[2] not in listed.text


@pytest.mark.rotating
def test_what_is_one_principals_is_404_to_another(guarded: Guarded) -> None:
    with guarded.as_(guarded.key("ann")) as ann, guarded.as_(guarded.key("ben", "read", "tune", "multiply")) as ben:
        put = ann.put("/matrices/weights?shape=4x4", content=EYE.tobytes(), headers=RAW)
        assert put.status_code in {200, 201}, put.text
        order = {"shapes": ["32"], "kernels": ["naive"], "budget": {"trials": 1}}
        tune = ann.post("/tune", json=order, headers={"Prefer": "wait=30"})
        later = ann.post(
            f"/matmul?{SHAPE}",
            content=EYE.tobytes() * 2,
            headers={**RAW, "Prefer": "respond-async", "Idempotency-Key": '"x"'},
        )
        assert (tune.status_code, later.status_code) == (200, 202), (tune.text, later.text)
        jobs = [tune.json()["id"], later.headers["location"].rpartition("/")[2]]
        for path in (
            "/matrices/weights",
            # The events end with the job: there is a result by then.
            *(f"/jobs/{job}{part}" for job in jobs for part in ("", "/events", "/result")),
        ):
            assert ann.get(path, headers={"Accept": "*/*"}).status_code == 200, path
            assert ben.get(path).status_code == 404, path
        for job in jobs:
            assert ben.delete(f"/jobs/{job}").status_code == 404
        for more in ("", "&format=replay"):
            assert ann.get(f"/trials?job_id={jobs[0]}{more}").status_code == 200
            assert ben.get(f"/trials?job_id={jobs[0]}{more}").status_code == 404
        assert ben.delete("/matrices/weights").status_code == 404
        assert ben.post("/matmul?a=weights&b=weights").status_code == 404
        assert {job["id"] for job in ben.get("/jobs").json()["jobs"]}.isdisjoint(jobs)
        assert {job["id"] for job in ann.get("/jobs").json()["jobs"]} >= set(jobs)
        assert ben.get("/matrices").json()["matrices"] == []
        # The same key of idempotency is another one, and a best is everybody's.
        again = ben.post(f"/matmul?{SHAPE}", content=b"\1" * 128, headers={"Idempotency-Key": '"x"', **RAW})
        assert again.status_code == 200, again.text
        assert ben.get("/best-config?m=32&n=32&k=32").json()["match"] == "exact"


def test_a_quota_is_kept_and_says_when_to_come_again(guarded: Guarded) -> None:
    quota = {"tune_seconds_per_hour": 10, "bytes_in_flight": 4096, "resident_bytes": 64, "jobs": 0}
    with guarded.as_(guarded.key("cat", quota=quota)) as cat:
        refused = cat.post("/tune", json={"shapes": ["32"], "budget": {"seconds": 11}})
        assert (refused.status_code, refused.json()["code"]) == (429, "device_time_used")
        assert int(refused.headers["retry-after"]) > 0
        refused = cat.post("/tune", json={"shapes": ["32"], "budget": {"seconds": 1}})
        assert (refused.status_code, refused.json()["code"]) == (429, "over_share")
        assert cat.post(f"/matmul?{SHAPE}", content=EYE.tobytes() * 2, headers=RAW).status_code == 200
        refused = cat.post("/matmul?m=64&n=64&k=64&dtype=float32", content=bytes(2 * 64 * 64 * 4), headers=RAW)
        assert (refused.status_code, refused.json()["code"]) == (429, "over_share")
        assert cat.put("/matrices/small?shape=4x4", content=EYE.tobytes(), headers=RAW).status_code == 201
        assert cat.put("/matrices/more?shape=4x4", content=EYE.tobytes(), headers=RAW).status_code == 507


def test_a_browsers_session_begins_and_ends(guarded: Guarded) -> None:
    key = guarded.key("dan", "read")
    with guarded.as_(None) as browser:
        assert browser.get("/").status_code == 200
        assert browser.get("/devices").status_code == 401
        assert browser.post("/login", json={"key": "wrong"}).status_code == 401
        answer = browser.post("/login", json={"key": key}, headers={"Origin": guarded.service.url})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert browser.get("/devices").status_code == 200
        assert browser.post("/logout", headers={"Origin": "https://evil.example"}).status_code == 403
        assert browser.post("/logout").status_code == 204
        assert browser.get("/devices").status_code == 401


def test_the_socket_knows_its_user(guarded: Guarded) -> None:
    transport = httpx.HTTPTransport(uds=str(guarded.folder / "socket"))
    with httpx.Client(transport=transport, base_url="http://tilewise") as client:
        assert client.get("/keys").status_code == 200


@pytest.mark.slow
def test_what_changed_and_what_was_denied_is_audited(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text(ADMIN)
    settings = {"auth": "keys", "admin_key_file": str(tmp_path / "admin")}
    with started(tmp_path / "data", devices="none", **settings) as service:
        quiet = Guarded(service, tmp_path)
        with quiet.as_(quiet.key("eve", "read")) as eve, quiet.as_(None) as nobody:
            assert eve.get("/jobs").status_code == 200
            assert eve.post("/keys", json={"principal": "root"}).status_code == 403
            assert nobody.post("/matmul?m=1&n=1&k=1").status_code == 401
        lines = quiet.audit()
    assert [(line["principal"], line["path"], line["status"], line.get("code")) for line in lines] == [
        ("admin", "/keys", 201, None),
        ("eve", "/keys", 403, "forbidden"),
        ("anonymous", "/matmul", 401, "unauthenticated"),
    ]
    assert {line["peer"] for line in lines} == {"127.0.0.1"}
    assert "Bearer" not in (tmp_path / "data" / "audit.jsonl").read_text()


def test_a_product_is_audited_where_it_stays(guarded: Guarded) -> None:
    product: dict[str, Any] = {"a": [[1, 2]], "b": [[3], [4]]}
    with guarded.as_(guarded.key("fay")) as fay:
        assert fay.post("/matmul", json=product).status_code == 200
        assert fay.post(f"/matmul?{SHAPE}&c=kept", content=EYE.tobytes() * 2, headers=RAW).status_code == 201
        assert fay.post("/matmul", json=product, headers={"Prefer": "respond-async"}).status_code == 202
    lines = [line for line in guarded.audit() if line["principal"] == "fay"]
    assert [(line["path"], line["status"], "job" in line) for line in lines] == [
        ("/matmul", 201, False),
        ("/matmul", 202, True),
    ]


@pytest.mark.slow
def test_beyond_loopback_somebody_must_be_asked_for(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "app.cli", "serve", "--host", "0.0.0.0", "--port", "0"]  # noqa: S104 - refused
    env = {**os.environ, "TILEWISE_DATA_DIR": str(tmp_path)}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert "TILEWISE_AUTH=keys" in ran.stderr


def certificate(folder: Path, name: str, subject: str, authority: str | None = None) -> Path:
    """A certificate and its key in one PEM file, by itself or by an authority."""
    key, made = folder / f"{name}.key", folder / f"{name}.crt"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", subject]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    if authority is not None:
        words += ["-CA", str(folder / f"{authority}.crt"), "-CAkey", str(folder / f"{authority}.key")]
        words += ["-addext", "basicConstraints=critical,CA:false"]
    subprocess.run(words, check=True, capture_output=True)
    both = folder / f"{name}.pem"
    both.write_text(made.read_text() + key.read_text())
    return both


@pytest.mark.slow
def test_a_client_certificate_is_a_principal_once_it_is_granted(tmp_path: Path) -> None:
    certificate(tmp_path, "ca", "/CN=authority")
    server, ann = (
        certificate(tmp_path, "server", "/CN=localhost", "ca"),
        certificate(tmp_path, "ann", "/O=Lab/CN=ann", "ca"),
    )
    certificate(tmp_path, "other", "/CN=other authority")
    stranger = certificate(tmp_path, "stranger", "/O=Lab/CN=ann", "other")
    (tmp_path / "admin").write_text(ADMIN)
    files = {"tls_certificate": server, "tls_clients": tmp_path / "ca.crt", "admin_key_file": tmp_path / "admin"}
    settings = {name: str(path) for name, path in files.items()}

    def client(path: Path | None = None, **headers: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        if path is not None:
            context.load_cert_chain(path)
        return httpx.Client(verify=context, base_url=service.url, headers=headers, timeout=20)

    with started(tmp_path / "data", devices="none", auth="mtls", **settings) as service:
        with client(Authorization=f"Bearer {ADMIN}") as admin, client(ann) as bearer:
            assert bearer.get("/jobs").status_code == 401
            granted = {"principal": "CN=ann,O=Lab", "scopes": ["read"], "certificate": True}
            made = admin.post("/keys", json=granted).json()
            assert made["key"] is None
            assert bearer.get("/jobs").status_code == 200
            assert bearer.get("/keys").status_code == 403
            assert admin.delete(f"/keys/{made['id']}").status_code == 200
            assert bearer.get("/jobs").status_code == 401
        with client(stranger) as foreign, pytest.raises(httpx.TransportError):
            foreign.get("/health/live")
