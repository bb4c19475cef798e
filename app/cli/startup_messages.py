"""What serve and demo print while they start."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from app.cli.session import address_of
from tilewise import Client, ClientError, Readiness

if TYPE_CHECKING:
    from app.services.service import Service  # the demo speaks HTTP alone, and need not load the service

_LOOK: Final = 0.2  # seconds between two looks at whether the service is ready, at first
_SELDOM: Final = 5.0  # and in the end


def opening_lines(service: Service, address: str) -> Iterator[str]:
    """Say where the pages are, where the data, and which devices there are and why there are no others."""
    if not address.startswith("unix:"):
        yield f"  pages    {address}/ and the reference at {address}/docs"
    yield f"  data     {service.data_dir}"
    for unit in service.fleet.units:
        device = unit.device
        units = f"{device.limits.sms} {'SMs' if device.platform == 'cuda' else 'cores'}"
        yield f"  device   {device.id}: {device.name}, {units}, {device.compiler}"
    for reason in service.fleet.reasons:
        yield f"  no       {reason}"


def announce_ready(address: str, closing: threading.Event) -> None:
    """Say, in a thread of its own, that the defaults are verified now, and once that is done in how long."""
    threading.Thread(target=_announce, args=(address, closing), name="announce ready", daemon=True).start()


def _announce(address: str, closing: threading.Event) -> None:
    began, told, pause = time.monotonic(), False, _LOOK
    with Client(address_of(f" at {address}") or address, timeout=5, retries=0, tls=_unverified(address)) as client:
        while not closing.wait(pause):
            pause = min(_SELDOM, pause * 1.05)  # a service without a device is never ready
            try:
                found = client.readiness()
            except ClientError:
                continue
            if found.status != "not_ready":
                print(ready_text(found, time.monotonic() - began), flush=True)
                return
            if not told:
                told = True
                print(f"  waits    {waiting_text(found)}", flush=True)


def waiting_text(found: Readiness) -> str:
    """What a service that is not ready yet waits for: defaults verified 3 of 7, or the reason."""
    if found.verified is None or found.total is None:
        return "; ".join(found.reasons)
    return f"defaults verified {found.verified} of {found.total}"


def ready_text(found: Readiness, seconds: float) -> str:
    """Ready in 6 s, or degraded and why."""
    reasons = "".join(f"; {reason}" for reason in found.reasons)
    counts = "" if found.total is None else f", {waiting_text(found)}"
    return f"{found.status.capitalize()} in {seconds:.0f} s{counts}{reasons}"


def _unverified(address: str) -> ssl.SSLContext | None:
    """Our own certificate need not be one that this host trusts."""
    if not address.startswith("https:"):
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
