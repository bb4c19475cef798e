"""nginx and Caddy, with the snippets as they are shipped, in front of a real service: nothing waits to be whole.

Only names, ports and paths are changed. Where a snippet's line is taken away, the same test must fail.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cli.spawn import Started, started
from tests.support.waiting import until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
LARGE = 4096, 2048  # a matrix of 32 MiB
PAUSE = 1.5


def need(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


pytestmark = pytest.mark.slow
BOTH = [pytest.param("nginx", marks=need("nginx")), pytest.param("caddy", marks=need("caddy"))]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    with started(tmp_path_factory.mktemp("data"), devices="opencl") as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "chain.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        *names,
        "-keyout",
        str(key),
        "-out",
        str(chain),
    ]
    subprocess.run(words, check=True, capture_output=True)
    return chain, key


@pytest.fixture
def behind(service: Started, certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Callable[..., httpx.Client]]:
    """Starts a proxy in front of the service; gives a client that speaks TLS to it."""
    processes: list[subprocess.Popen[bytes]] = []
    clients: list[httpx.Client] = []

    def start(proxy: str, *instead: tuple[str, str], upstream: str = "") -> httpx.Client:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        target = upstream or service.url.removeprefix("http://")
        words = (nginx if proxy == "nginx" else caddy)(tmp_path, port, target, certificate, dict(instead))
        home = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        with (tmp_path / "proxy.log").open("wb") as log:
            processes.append(subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, env=home))
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        clients.append(httpx.Client(base_url=f"https://localhost:{port}", verify=trust, timeout=60))
        until_it_listens(port, processes[0], tmp_path / "proxy.log")
        return clients[0]

    yield start
    for client in clients:
        client.close()
    for process in processes:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("proxy", BOTH)
def test_large_bodies_pass_in_both_directions_while_they_are_sent(
    proxy: str, behind: Callable[..., httpx.Client], service: Started
) -> None:
    client = behind(proxy)
    rng = np.random.default_rng(7)
    a, column = (rng.integers(-4, 5, LARGE).astype(np.float32) for _ in range(2))
    b = column[: LARGE[1], :1].copy()
    answer = multiply(client, a, b, pause=PAUSE)
    assert np.array_equal(values(answer.content, LARGE[0], 1), a @ b)
    assert receiving(answer) > PAUSE * 0.8, "the service had the first bytes before the last had been sent"
    left, right = a[:, :1].copy(), a[:1].copy()
    with client.stream("POST", url(left, right), content=left.tobytes() + right.tobytes(), headers=RAW) as answer:
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        first = next(pieces)
        time.sleep(PAUSE)
        assert lent(service) > 0, "the answer is still the service's: the proxy has not swallowed it"
        assert np.array_equal(values(first + b"".join(pieces), *LARGE), left @ right)


@need("nginx")
def test_nginx_would_keep_a_body_back_without_its_line(behind: Callable[..., httpx.Client]) -> None:
    client = behind("nginx", ("proxy_request_buffering off;", ""))
    a, b = np.ones(LARGE, np.float32), np.ones((LARGE[1], 1), np.float32)
    assert receiving(multiply(client, a, b, pause=PAUSE)) < PAUSE * 0.8


@pytest.mark.parametrize("proxy", BOTH)
def test_events_pass_one_by_one(proxy: str, behind: Callable[..., httpx.Client]) -> None:
    client = behind(proxy)
    order = {"shapes": [{"m": 96, "n": 80, "k": 64}], "budget": {"seconds": 6}, "kernels": ["tiled"], "retune": True}
    job = client.post("/tune", json=order).raise_for_status().json()
    seen: list[tuple[str, float]] = []
    with client.stream("GET", f"/jobs/{job['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("event: "):
                seen.append((line.removeprefix("event: "), time.monotonic()))
                if line == "event: end":
                    break
    assert len(seen) >= 3
    assert seen[-1][1] - seen[0][1] > 1, "the first event was there long before the last"
    assert len({round(at, 1) for _, at in seen}) >= 3


@pytest.mark.parametrize("proxy", BOTH)
def test_heads_arrive_as_the_client_and_the_proxy_mean_them(proxy: str, behind: Callable[..., httpx.Client]) -> None:
    with recording() as (address, heads):
        client = behind(proxy, upstream=address)
        lie = {"Authorization": "Bearer tw_a_b", "X-Forwarded-For": "10.9.8.7", "X-Forwarded-Proto": "gopher"}
        assert client.get("/limits", headers=lie).status_code == 200
        told = heads[-1]
        assert told["authorization"] == "Bearer tw_a_b"
        assert told["host"] == f"localhost:{client.base_url.port}"
        assert told["x-forwarded-for"] in {"127.0.0.1", "::1"}
        assert (told["x-forwarded-proto"], told["x-forwarded-host"]) == ("https", told["host"])


@pytest.mark.parametrize("proxy", BOTH)
def test_a_body_beyond_the_limit_is_refused(proxy: str, behind: Callable[..., httpx.Client]) -> None:
    limits = {"nginx": ("client_max_body_size 1g;", "client_max_body_size 1m;"), "caddy": ("1GiB", "1MiB")}
    with recording() as (address, heads):
        client = behind(proxy, limits[proxy], upstream=address)
        assert client.post("/matmul", content=bytes(3 * 2**20)).status_code in {413, 502}
        assert client.post("/matmul", content=bytes(2**19)).status_code == 200
    assert len(heads) == 1


RAW = {"Content-Type": "application/octet-stream", "Accept": "application/octet-stream"}


def url(a: np.ndarray, b: np.ndarray) -> str:
    return f"/matmul?m={a.shape[0]}&n={b.shape[1]}&k={a.shape[1]}&dtype=float32"


def multiply(client: httpx.Client, a: np.ndarray, b: np.ndarray, *, pause: float) -> httpx.Response:
    """Multiply, with a pause amid the body."""
    body = a.tobytes() + b.tobytes()

    def parts() -> Iterator[bytes]:
        yield body[: len(body) // 2]
        time.sleep(pause)
        yield body[len(body) // 2 :]

    headers = RAW | {"Content-Length": str(len(body))}
    return client.post(url(a, b), content=parts(), headers=headers).raise_for_status()


def receiving(answer: httpx.Response) -> float:
    """Seconds that the service says it took to receive the body."""
    found = re.search(r"receive;dur=([0-9.]+)", answer.headers["server-timing"])
    assert found, answer.headers
    return float(found[1]) / 1e3


def values(content: bytes, rows: int, columns: int) -> np.ndarray:
    return np.frombuffer(content, np.float32).reshape(rows, columns)


def lent(service: Started) -> float:
    text = httpx.get(f"{service.url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("tilewise_slab_lent_bytes "))


def nginx(folder: Path, port: int, upstream: str, certificate: tuple[Path, Path], instead: dict[str, str]) -> list[str]:
    """The shipped site within the least configuration that nginx takes."""
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    changes = {
        "server 127.0.0.1:8000;": f"server {upstream};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/certs/tilewise.pem": str(certificate[0]),
        "/etc/ssl/private/tilewise.key": str(certificate[1]),
        **instead,
    }
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    site = changed(text, changes)
    user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""  # its processes keep bodies in our folder
    site = f"{user}error_log stderr;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{site}}}\n"
    (folder / "nginx.conf").write_text(site, encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr", "-g", "daemon off;"]


def caddy(folder: Path, port: int, upstream: str, certificate: tuple[Path, Path], instead: dict[str, str]) -> list[str]:
    """The shipped site with a certificate of its own."""
    chain, key = certificate
    text = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    changes = {
        "\ntilewise.example.com {": f"\nhttps://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {chain} {key}",
        "reverse_proxy 127.0.0.1:8000 {": f"reverse_proxy {upstream} {{",
        **instead,
    }
    site = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + changed(text, changes)
    (folder / "Caddyfile").write_text(site, encoding="utf-8")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def listens() -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    def said() -> str:
        assert process.poll() is None, log.read_text()
        return log.read_text()

    until(listens, 30, each=0.05, meanwhile=said)


@contextmanager
def recording() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that keeps the heads that reach it: its address, and they."""
    heads: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heads.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            left = int(self.headers["Content-Length"])
            while left and (piece := self.rfile.read1(left)):
                left -= len(piece)
            if left:
                return  # the proxy has broken off
            self.do_GET()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", heads
        finally:
            server.shutdown()
            thread.join()
