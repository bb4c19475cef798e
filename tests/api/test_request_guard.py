"""What is refused by a head alone: Host, Origin, keys, scopes."""

from __future__ import annotations

import timeit
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Mount

from app.api.admission.request_guard import PUBLIC, RequestGuard, scopes_of_route
from app.main import create_app
from app.server import Peer
from app.services.access.api_keys import ApiKeys
from app.services.access.audit import AuditLog
from app.services.access.caller import Access
from app.services.principal import Principal, UsageQuota, scopes_of
from app.settings import Settings
from app.store.database import migrate, open_database

PEER = Peer("::1")
HOST = (b"host", b"gpu.example:8000")


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return list(create_app(Settings(data_dir=tmp_path_factory.mktemp("data"))).router.routes)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[ApiKeys]:
    url = f"sqlite:///{tmp_path / 'tilewise.db'}"
    migrate(url)
    with open_database(url) as database:
        keys = ApiKeys(database, b"s" * 32)
        keys.start()
        yield keys


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


@pytest.fixture
def guard(routes: list[Any], keys: ApiKeys, audit: AuditLog) -> RequestGuard:
    access = Access(keys, audit, "keys", ["gpu.example", "localhost"])
    return RequestGuard(lambda: access, lambda: routes)


def head(
    method: str, path: str, *headers: tuple[bytes, bytes], version: str = "1.1", peer: Peer = PEER
) -> tuple[dict[str, Any], Peer]:
    scope = {"method": method, "path": path, "http_version": version, "headers": list(headers), "query_string": b""}
    return scope, peer


def status(guard: RequestGuard, asked: tuple[dict[str, Any], Peer]) -> int:
    answer = guard(*asked)
    return answer.status_code if isinstance(answer, Response) else 200


def bearer(keys: ApiKeys, *scopes: str) -> tuple[bytes, bytes]:
    _, token = keys.create("ann", scopes_of(scopes))
    assert token is not None
    return b"authorization", b"Bearer " + token.encode()


def test_every_route_says_who_may_use_it(routes: list[Any]) -> None:
    public = set()
    for route in routes:
        for method in getattr(route, "methods", None) or {"GET"}:
            if scopes_of_route("GET" if method == "HEAD" else method, route.path) is PUBLIC:
                public.add(route.path)
    assert public == {"/", "/ui/{page:path}", "/static", "/health/live", "/health/ready", "/login", "/logout"}
    with pytest.raises(LookupError):
        scopes_of_route("POST", "/new")


def test_all_but_the_public_routes_need_a_key(guard: RequestGuard, routes: list[Any]) -> None:
    for route in routes:
        path = route.path.replace("{", "").replace("}", "") + ("/x" if isinstance(route, Mount) else "")
        for method in getattr(route, "methods", None) or {"GET"}:
            is_public = scopes_of_route("GET" if method == "HEAD" else method, route.path) is PUBLIC
            assert status(guard, head(method, path, HOST)) == (200 if is_public else 401), (method, path)
    for method, path in (
        ("GET", "/nothing"),
        ("PATCH", "/tune"),
        ("OPTIONS", "/matmul"),
        ("GET", "/static-offline-docs/x"),
    ):
        assert status(guard, head(method, path, HOST)) == 401


def test_a_key_opens_what_its_scopes_say(guard: RequestGuard, keys: ApiKeys) -> None:
    read, multiply = bearer(keys, "read"), bearer(keys, "multiply")
    asked = {
        ("GET", "/best-config"): (200, 403),
        ("HEAD", "/best-config"): (200, 403),
        ("POST", "/matmul"): (403, 200),
        ("POST", "/v2/models/matmul/infer"): (403, 200),
        ("GET", "/matrices/weights"): (403, 200),
        ("POST", "/tune"): (403, 403),
        ("DELETE", "/jobs/x"): (403, 200),
        ("GET", "/metrics"): (403, 403),
        ("POST", "/keys"): (403, 403),
        ("GET", "/nothing"): (200, 200),
    }
    for (method, path), (by_read, by_multiply) in asked.items():
        assert status(guard, head(method, path, HOST, read)) == by_read, path
        assert status(guard, head(method, path, HOST, multiply)) == by_multiply, path


def test_a_refusal_says_what_to_show(guard: RequestGuard, keys: ApiKeys) -> None:
    nobody: Any = guard(*head("GET", "/jobs", HOST))
    assert nobody.headers["WWW-Authenticate"] == 'Bearer realm="tilewise"'
    narrow: Any = guard(*head("POST", "/tune", HOST, bearer(keys, "read")))
    assert narrow.headers["WWW-Authenticate"].endswith('error="insufficient_scope", scope="tune"')


def test_64_kib_of_cookies_take_no_time(guard: RequestGuard, keys: ApiKeys) -> None:
    _, token = keys.create("ann", scopes_of(["read"]))
    session = f"tilewise_session={keys.session_of(token or '')}".encode()
    cookies = b"cookie", b"a=b; " * 13_000 + session
    guard(*head("GET", "/jobs", HOST, (b"cookie", session)))
    began = process_time()
    assert status(guard, head("GET", "/jobs", HOST, cookies)) == 200
    assert process_time() - began < 0.03  # a thousandth of a second, where a parser of all of them takes 0.1


@pytest.mark.parametrize(
    "value", [b"", b"Basic dGVzdA==", b"Bearer", b"Bearer a b", b"Bearer \xff", b"Bearer " + b"x" * 600]
)
def test_an_authorization_that_cannot_be_read_is_401(guard: RequestGuard, value: bytes) -> None:
    assert status(guard, head("GET", "/jobs", HOST, (b"authorization", value))) == 401


def test_two_keys_are_none(guard: RequestGuard, keys: ApiKeys) -> None:
    key = bearer(keys, "read")
    assert status(guard, head("GET", "/jobs", HOST, key)) == 200
    assert status(guard, head("GET", "/jobs", HOST, key, key)) == 401


def test_a_session_reads_and_changes(guard: RequestGuard, keys: ApiKeys) -> None:
    _, token = keys.create("ann", scopes_of(["read", "tune"]))
    cookie = b"cookie", f"other=1; tilewise_session={keys.session_of(token or '')}".encode()
    assert status(guard, head("GET", "/jobs", HOST, cookie)) == 200
    assert status(guard, head("POST", "/tune", HOST, cookie, (b"origin", b"http://gpu.example:8000"))) == 200
    assert status(guard, head("GET", "/jobs", HOST, (b"cookie", b"not_tilewise_session=1;" + cookie[1]))) == 200
    assert status(guard, head("GET", "/jobs", HOST, (b"cookie", b"not_" + cookie[1].split()[1]))) == 401
    assert status(guard, head("GET", "/jobs", HOST, (b"cookie", b"tilewise_session=x.y"))) == 401
    assert status(guard, head("GET", "/jobs", HOST, (b"cookie", b"=\xff;;"))) == 401


@pytest.mark.parametrize(
    "host",
    [b"gpu.example", b"GPU.example.:80", b"localhost:1", b"127.0.0.1:8000", b"[::1]:8000", b"10.0.0.7", b"[fe80::1]"],
)
def test_a_host_that_is_this_service_is_served(guard: RequestGuard, host: bytes) -> None:
    assert status(guard, head("GET", "/health/live", (b"host", host))) == 200


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("host", "expected"),
    [(b"evil.example", 421), (b"localhost.evil.example", 421), (b"127.0.0.1.nip.io", 421)]
    + [(bad, 400) for bad in (b"", b"a b", b"<script>", b"gpu.example:x", b"gpu.example, b", b"[::1", b"a@b", b"a/b")],
)
def test_a_foreign_host_is_421_and_none_400(guard: RequestGuard, host: bytes, expected: int) -> None:
    assert status(guard, head("GET", "/health/live", (b"host", host))) == expected


def test_a_request_has_one_host(guard: RequestGuard) -> None:
    assert status(guard, head("GET", "/health/live")) == 400
    assert status(guard, head("GET", "/health/live", HOST, HOST)) == 400
    assert status(guard, head("GET", "/health/live", version="1.0")) == 200
    assert status(guard, head("GET", "/health/live")) == 400  # though one like it was let in a moment ago


@pytest.mark.parametrize(
    "headers",
    [
        [(b"origin", b"https://evil.example")],
        [(b"origin", b"null")],
        [(b"origin", b"http://gpu.example:9000")],
        [(b"sec-fetch-site", b"cross-site")],
        [(b"sec-fetch-site", b"same-site")],
        [(b"origin", b"http://gpu.example:8000"), (b"origin", b"https://evil.example")],
    ],
)
def test_another_sites_page_changes_nothing(
    guard: RequestGuard, keys: ApiKeys, headers: list[tuple[bytes, bytes]]
) -> None:
    key = bearer(keys, "multiply", "read", "tune")
    for method, path in (("POST", "/matmul"), ("PUT", "/matrices/a"), ("DELETE", "/jobs/x"), ("POST", "/login")):
        assert status(guard, head(method, path, HOST, key, *headers)) == 403, path
    assert status(guard, head("GET", "/best-config", HOST, key, *headers)) == 200


def test_ones_own_page_changes_things(guard: RequestGuard, keys: ApiKeys) -> None:
    own = [(b"origin", b"http://gpu.example:8000"), (b"sec-fetch-site", b"same-origin")]
    assert status(guard, head("POST", "/tune", HOST, bearer(keys, "tune"), *own)) == 200


def test_a_user_of_the_socket_is_a_principal_and_a_shown_key_goes_first(guard: RequestGuard) -> None:
    user = Peer(uid=4321)
    assert guard(*head("POST", "/matmul", (b"host", b"any"), peer=user)) == Principal(
        "uid-4321", scopes_of(["read", "tune", "multiply"])
    )
    assert status(guard, head("POST", "/keys", HOST, peer=user)) == 403
    assert status(guard, head("POST", "/keys", HOST, peer=Peer(uid=0))) == 200
    assert status(guard, head("GET", "/jobs", HOST, (b"authorization", b"Bearer x"), peer=Peer(uid=0))) == 401


def test_a_certificates_subject_is_a_principal_once_it_is_granted(guard: RequestGuard, keys: ApiKeys) -> None:
    asked = head("GET", "/jobs", HOST, peer=Peer("::1", certificate="CN=ann"))
    assert status(guard, asked) == 401
    keys.create("CN=ann", scopes_of(["read"]), certificate=True)
    assert guard(*asked) == Principal("CN=ann", scopes_of(["read"]))


def test_a_rate_holds_for_a_principal_whatever_it_asks(guard: RequestGuard, keys: ApiKeys) -> None:
    _, token = keys.create("ann", scopes_of(["read"]), UsageQuota(requests_per_second=5))
    key = b"authorization", b"Bearer " + (token or "").encode()
    paths = ["/jobs", "/best-config", "/devices"] * 2
    assert [status(guard, head("GET", path, HOST, key)) for path in paths] == [200] * 5 + [429]
    _, another = keys.create("ann", scopes_of(["read"]), UsageQuota(requests_per_second=5))
    assert status(guard, head("GET", "/jobs", HOST, (b"authorization", b"Bearer " + (another or "").encode()))) == 429


def test_a_revoked_key_is_refused_though_it_was_let_in_a_moment_ago(guard: RequestGuard, keys: ApiKeys) -> None:
    record, token = keys.create("ann", scopes_of(["read"]))
    asked = head("GET", "/best-config", HOST, (b"authorization", b"Bearer " + (token or "").encode()))
    assert status(guard, asked) == status(guard, asked) == 200
    keys.revoke(record.id)
    assert status(guard, asked) == 401


def test_heads_that_were_let_in_take_little_memory_and_for_a_moment(routes: list[Any], keys: ApiKeys) -> None:
    now = [0.0]
    access = Access(keys, AuditLog(Path("audit.jsonl")), "keys", ["gpu.example"])
    guard = RequestGuard(lambda: access, lambda: routes, lambda: now[0])
    assert status(guard, head("GET", "/health/live", HOST)) == 200
    tracemalloc.start()
    try:
        for number in range(1000):
            cookie = b"cookie", b"%05d" % number * 1000
            assert status(guard, head("GET", "/health/live", HOST, cookie)) == 200
        assert tracemalloc.get_traced_memory()[0] < 500_000, "of 5 MB that a stranger sent"
        for number in range(1000):
            assert status(guard, head("GET", f"/static/{number}", HOST)) == 200
        remembered = tracemalloc.get_traced_memory()[0]
        now[0] = 1.0
        assert status(guard, head("GET", "/health/live", HOST)) == 200
        assert tracemalloc.get_traced_memory()[0] < remembered - 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.timing
def test_a_head_is_decided_in_microseconds(guard: RequestGuard, keys: ApiKeys) -> None:
    asked = head("GET", "/best-config", HOST, (b"user-agent", b"x"), (b"accept", b"*/*"), bearer(keys, "read"))
    refused = head("GET", "/best-config", HOST, (b"authorization", b"Bearer " + b"x" * 60))
    for what, limit in ((asked, 20e-6), (refused, 300e-6)):
        guard(*what)
        seconds = min(timeit.repeat(lambda what=what: guard(*what), number=1000, repeat=5)) / 1000  # type: ignore[misc]
        print(f"{seconds * 1e6:.2f} us")
        assert seconds < limit
