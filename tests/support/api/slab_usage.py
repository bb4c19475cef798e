"""What a service still lends of its slab: an answer may reach its caller a moment before its bytes are given back."""

from __future__ import annotations

import time

import httpx
from prometheus_client.parser import text_string_to_metric_families


def metric(client: httpx.Client, name: str) -> float:
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    return sum(sample.value for sample in families[name].samples)


def all_given_back(client: httpx.Client) -> bool:
    """Whether the slab lends nothing, within a minute; what it lends for longer is told."""
    until = time.monotonic() + 60
    while lent := metric(client, "tilewise_slab_lent_bytes"):
        if time.monotonic() > until:
            print(f"{lent} bytes of the slab are lent")
            return False
        time.sleep(0.02)
    return True
