"""CacheMethods: opaque results of other tuners, kept by the service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from tilewise._http1 import HttpRequest, target
from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation
from tilewise.decoding import from_json
from tilewise.errors import NotFound


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An entry of a namespace; `value` is its text where it is JSON and was asked for."""

    key: str
    etag: str
    bytes: int
    media_type: str
    created_at: datetime
    expires_at: datetime | None = None
    value: str | None = None


class CacheMethods(RequestMethods):
    """Entries by namespace and key, seen by whoever put them alone. Every method raises ClientError if refused."""

    @Operation
    def cache_get(self, namespace: str, key: str) -> Flow[bytes | None]:
        """Give what was put under a key, or None."""
        try:
            return (yield from self._get(_place(namespace, key))).body
        except NotFound as error:
            if error.code != "unknown_cache_entry":
                raise
            return None

    @Operation
    def cache_put(self, namespace: str, key: str, data: bytes | str, *, ttl: float | None = None) -> Flow[CacheEntry]:
        """Keep bytes, or a text of JSON, under a key, for so many seconds; what was there is replaced."""
        media = "application/json" if isinstance(data, str) else "application/octet-stream"
        body = (memoryview(data.encode() if isinstance(data, str) else data),)
        where = target(_place(namespace, key), {"ttl": ttl})
        ask = HttpRequest("PUT", where, body, {"Content-Type": media}, again=True)
        return self._as(CacheEntry, (yield from self.transport.exchange(ask)))

    @Operation
    def cache_list(self, namespace: str, *, values: bool = False, limit: int = 100) -> Flow[list[CacheEntry]]:
        """List at most `limit` entries of a namespace, newest first."""
        query = {"values": "true" if values else None, "limit": limit}
        found = yield from self._list(f"/cache/{quote(namespace, safe='')}", "entries", query)
        return [from_json(CacheEntry, entry) for entry in found]

    @Operation
    def cache_delete(self, namespace: str, key: str) -> Flow[None]:
        """Have an entry forgotten."""
        yield from self.transport.exchange(HttpRequest("DELETE", _place(namespace, key), again=True, done=404))


def _place(namespace: str, key: str) -> str:
    return f"/cache/{quote(namespace, safe='')}/{quote(key, safe='')}"
