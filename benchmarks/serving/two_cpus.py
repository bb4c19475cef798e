"""A host's CPU as two devices, each with a worker of its own, for tests and trials of what several devices do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from app.devices import worker_entry
from app.devices.fleet import Fleet, open_fleet
from app.devices.lease import Lease
from app.devices.process import Worker


@contextmanager
def two_cpus(slab_bytes: int, cache_dir: Path) -> Iterator[Fleet]:
    """Devices opencl:0 and opencl:1 over one slab; neither is confined."""
    with ExitStack() as stack:
        fleet = stack.enter_context(open_fleet("opencl", cache_dir, slab_bytes, sandboxed=False))
        (first,), slab = fleet.units, fleet.slab
        lease = Lease()
        stack.callback(lease.close)
        child = Worker(
            "opencl:1",
            worker_entry.hold,
            ("opencl", first.device.id, cache_dir, slab.fd, slab.nbytes, True),
            descriptors=(slab.fd,),
            lease=lease,
            on_lost=slab.hold_back,
        )
        stack.callback(child.close)
        child.start()
        other = replace(first, device=replace(first.device, id="opencl:1"), lease=lease, products=child, trials=child)
        yield replace(fleet, units=(first, other))
