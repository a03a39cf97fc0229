"""Devices by name, one object for each in a process: "cuda:0", "fake:0"."""

import threading
from typing import Final

from pdgate.transfer.device.base import Device
from pdgate.transfer.device.cuda import CudaDevice
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.memory import kind

KINDS: Final = ("cuda", "fake")

_lock = threading.Lock()
_open: dict[str, Device] = {}


def open_device(name: str) -> Device:
    """The device of this name. Nothing of a driver is loaded before.

    Raises LookupError with one sentence: no such kind, no driver, no such device.
    """
    with _lock:
        found = _open.get(name)
        if found is None:
            found = _open[name] = _made(name)
        return found


def _made(name: str) -> Device:
    number = name.partition(":")[2]
    if kind(name) not in KINDS or not number.isdecimal():
        raise LookupError(f"no device {name!r}: there are cuda:N, and fake:N for tests")
    return CudaDevice(int(number)) if kind(name) == "cuda" else FakeDevice(name)
