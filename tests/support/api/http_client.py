"""Clients of services that speak no TLS: the certificates that httpx loads for each cost more than a small request."""

from __future__ import annotations

import ssl

import httpx

_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def calling(url: str, seconds: float = 60) -> httpx.Client:
    """A client of a service, that waits so long for an answer."""
    return httpx.Client(base_url=url, timeout=seconds, verify=_NO_CERTIFICATES)
