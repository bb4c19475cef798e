"""CordonMethods: devices that an operator has refuse work, and serve again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from tilewise._http1 import HttpRequest
from tilewise._requests import RequestMethods
from tilewise._sansio import Flow, Operation


@dataclass(frozen=True, slots=True)
class Cordon:
    """Whether a device is cordoned, why, by whom (`operator`, or `health`: the service itself), and since when."""

    device: str
    cordoned: bool
    reason: str | None = None
    by: str | None = None
    since: datetime | None = None


class CordonMethods(RequestMethods):
    """Cordons of devices. Every method raises ClientError if the service refuses."""

    @Operation
    def cordon(self, device: str, reason: str) -> Flow[Cordon]:
        """Have a device refuse products and tunes until it is uncordoned; gives its cordon, or the one it had."""
        body = (memoryview(json.dumps({"reason": reason}).encode()),)
        ask = HttpRequest("POST", f"{_place(device)}/cordon", body, {"Content-Type": "application/json"}, again=True)
        return self._as(Cordon, (yield from self.transport.exchange(ask)))

    @Operation
    def uncordon(self, device: str) -> Flow[Cordon]:
        """Have a device that is cordoned serve again."""
        return self._as(
            Cordon, (yield from self.transport.exchange(HttpRequest("POST", f"{_place(device)}/uncordon", again=True)))
        )


def _place(device: str) -> str:
    return f"/devices/{quote(device, safe='')}"
