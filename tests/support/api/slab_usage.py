"""What a service still lends of its slab: an answer may reach its caller a moment before its bytes are given back."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import until


def metric(client: httpx.Client, name: str) -> float:
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    return sum(sample.value for sample in families[name].samples)


def all_given_back(client: httpx.Client) -> bool:
    """Whether the slab lends nothing: waited for a minute, and a failure that says what it lends for longer."""

    def lent() -> float:
        return metric(client, "tilewise_slab_lent_bytes")

    return until(lambda: not lent(), 60, meanwhile=lambda: f"{lent():g} bytes of the slab are lent")
