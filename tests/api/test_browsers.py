"""What browsers are told, and a person's way in: pages without anything inline, and a session for a key."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from app.cli.spawn import Started, started
from app.server.security_headers import of_every_answer

KEY = "operators-own-key"


@dataclass(frozen=True)
class Locked:
    """A service that wants keys, and its address."""

    service: Started

    @property
    def url(self) -> str:
        return self.service.url

    def browser(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Origin": self.url, **headers}, timeout=30)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    (folder / "admin").write_text(KEY)
    settings = {"auth": "keys", "admin_key_file": str(folder / "admin")}
    with started(folder / "data", devices="none", **settings) as service:
        yield Locked(service)


class Elements(HTMLParser):
    """The elements of a page, those with text in them that is run or styles, and inline attributes of either."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.found.append((tag, dict(attrs)))
        self.inline += [name for name, _ in attrs if name == "style" or name.startswith("on")]
        self.inline += [value for name, value in attrs if name in {"href", "src"} and (value or "").startswith("data:")]  # type: ignore[misc]

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in {"script", "style"} and data.strip():
            self.inline.append(data)


@pytest.mark.parametrize("path", ["/", "/docs", "/errors", "/errors/invalid"])
def test_pages_run_and_style_nothing_that_stands_in_them(client: httpx.Client, path: str) -> None:
    page = client.get(path, headers={"Accept": "text/html"})
    assert page.headers["Content-Type"].startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert Elements(page.text).inline == []
    for link in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
        assert client.get(httpx.URL(str(page.url)).join(link)).status_code == 200, link


def test_no_type_is_guessed_of_any_answer(live: Started, client: httpx.Client) -> None:
    answers = [
        client.get("/"),
        client.get("/static/page.js"),
        client.get("/devices"),
        client.get("/nothing"),
        client.post("/tune", content=b"no JSON", headers={"Content-Type": "application/json"}),
        client.get("/devices", headers={"Host": "another.example"}),
    ]
    assert [one.headers.get("X-Content-Type-Options") for one in answers] == ["nosniff"] * len(answers)
    assert not [one for one in answers if "Strict-Transport-Security" in one.headers], "it came without TLS"
    with socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert b"\r\nx-content-type-options: nosniff\r\n" in connection.recv(2**16)


@pytest.mark.slow
def test_over_tls_browsers_stay_there(tmp_path: Path) -> None:
    assert dict(of_every_answer(tls=False)).keys() == {"X-Content-Type-Options"}
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with started(tmp_path / "data", devices="none", **tls) as service:
        trust = ssl.create_default_context(cafile=certificate)
        answer = httpx.get(f"{service.url}/health/live", verify=trust)
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


@pytest.mark.slow
def test_a_person_logs_in_with_a_key_works_and_logs_out(locked: Locked) -> None:
    with locked.browser() as browser:
        page = browser.get("/")
        assert page.status_code == 200
        elements = Elements(page.text).found
        assert ("form", {"id": "login-form", "method": "post", "action": "login"}) in elements
        assert [one["type"] for tag, one in elements if tag == "input" and one.get("name") == "key"] == ["password"]
        for tag, attributes in elements:
            source = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            assert source is None or browser.get(f"/{source}").status_code == 200, source
        assert browser.get("/static/login.js").status_code == 200
        assert browser.get("/devices").status_code == 401
        wrong = browser.post("/login", json={"key": "wrong"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")
        assert browser.post("/login", json={"key": KEY}).status_code == 204
        assert browser.get("/devices").status_code == 200
        assert browser.get("/docs").status_code == 200
        assert browser.post("/tune", json={}, headers={"Origin": "https://evil.example"}).status_code == 403
        assert browser.post("/logout").status_code == 204
        assert browser.get("/devices").status_code == 401


@pytest.mark.slow
def test_the_pages_script_asks_for_a_key_where_one_is_missing(locked: Locked) -> None:
    with locked.browser() as browser:
        page, login = (browser.get(f"/static/{name}.js").text for name in ("parts/service", "login"))
    assert 'import { askForKey } from "../login.js"' in page
    assert "answer.status === 401" in page
    for name in re.findall(r'\$\("([a-z-]+)"\)', login):
        assert f'id="{name}"' in browser_page(locked), name


def browser_page(locked: Locked) -> str:
    with locked.browser() as browser:
        return browser.get("/").text
