"""A host of our own to which the network swallows everything, from a moment on.

    with host("10.77.0.9") as hole:          an address of this network namespace, for a server
        with hole.open():                    what goes there vanishes, connections that stand and new ones
            ...

Unlike a process that is stopped it accepts no connection, and its kernel acknowledges nothing. It takes
a network namespace of our own (tools/isolated.sh): the address leaves loopback, and the way to it is
an interface at whose other end nobody has it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NEAR, FAR = "pdgate-hole0", "pdgate-hole1"
NOBODYS_MAC = "02:00:00:00:00:01"


class Host:
    def __init__(self, address: str) -> None:
        self._address = address

    @contextmanager
    def open(self) -> Iterator[None]:
        address = self._address
        _ip("neigh", "replace", address, "lladdr", NOBODYS_MAC, "dev", NEAR, "nud", "permanent")
        _ip("route", "replace", f"{address}/32", "dev", NEAR)
        _ip("address", "delete", f"{address}/32", "dev", "lo")
        try:
            yield
        finally:
            _ip("address", "add", f"{address}/32", "dev", "lo")
            _ip("route", "delete", f"{address}/32", "dev", NEAR)


@contextmanager
def host(address: str) -> Iterator[Host]:
    if "PDGATE_LOOPBACK_ONLY" not in os.environ:
        reason = (
            "a black hole needs a network namespace of its own: bash tools/isolated.sh pytest ..."
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    _ip("link", "add", NEAR, "type", "veth", "peer", "name", FAR)
    try:
        _ip("link", "set", NEAR, "up")
        _ip("link", "set", FAR, "up")
        _ip("address", "add", f"{address}/32", "dev", "lo")
        try:
            yield Host(address)
        finally:
            _ip("address", "delete", f"{address}/32", "dev", "lo")
    finally:
        _ip("link", "delete", NEAR)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)
