"""Helion's remote cache on a service of Tilewise: HELION_REMOTE_CACHE_BACKEND=tilewise.helion.TilewiseCache.

TILEWISE_URL says where the service is, TILEWISE_KEY who asks, TILEWISE_HELION_NAMESPACE which namespace (helion).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tilewise.client import LOCAL, Client

try:
    from helion.autotuner.remote_cache import RemoteCacheBackend
except ImportError:  # whoever only looks at this module
    RemoteCacheBackend = object

_MOST = 100


class TilewiseCache(RemoteCacheBackend):  # type: ignore[misc]  # Helion is not installed where this is checked
    """Results of Helion's tuner in a namespace of the service. Helion itself takes an error for a miss, and logs it."""

    def __init__(self) -> None:
        self._namespace = os.environ.get("TILEWISE_HELION_NAMESPACE", "helion")
        self._client = Client(os.environ.get("TILEWISE_URL") or LOCAL, timeout=10.0, retries=1)

    def get(self, key: str) -> str | None:
        """Give the text that was put under a key, or None."""
        found = self._client.cache_get(self._namespace, key)
        return None if found is None else found.decode()

    def put(self, key: str, data: str) -> None:
        """Keep a text of JSON under a key."""
        self._client.cache_put(self._namespace, key, data)

    def list(self, max_results: int | None = None) -> Iterable[str]:
        """Give the newest texts."""
        limit = min(max_results or _MOST, _MOST)
        return [one.value for one in self._client.cache_list(self._namespace, values=True, limit=limit) if one.value]
