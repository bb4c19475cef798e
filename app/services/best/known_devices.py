"""KnownDevices: the devices that answers are for, open or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernels.device import Device


class DeviceModel(Protocol):
    """What is known of one device, be it open or not."""

    @property
    def device(self) -> Device:
        """The device."""
        ...


class KnownDevices(Protocol):
    """The devices that answers are for."""

    @property
    def units(self) -> Sequence[DeviceModel]:
        """Every one of them."""
        ...

    def unit(self, device_id: str | None = None) -> DeviceModel:
        """One of them, or the first; raises NoDevice where there is none, UnknownDevice for an unknown id."""
        ...
