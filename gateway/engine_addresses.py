"""Addresses of engines as gateways name them to each other: ip:port, an IPv6 address in brackets.

    http://10.0.0.2:8000        10.0.0.2:8000
    http://decode-0.llm:8000    what the name resolves to, asked again every RESOLVED_SECONDS

An engine of several data-parallel ranks is several instances at one address.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Final

from pdgate.cluster import address
from pdgate.protocols.errors import EngineRefused
from pdgate.protocols.instance import Instance
from pdgate.scheduling.endpoint import Endpoint

RESOLVED_SECONDS: Final = 30.0
RESOLVING_SECONDS: Final = 2.0
MOST_NAMES: Final = 4096
"""That are remembered; engines come and go by the thousand in a year."""


class EngineAddresses:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # Name and port -> address, and when it was asked for.
        self._found: dict[tuple[str, int], tuple[str, float]] = {}

    async def of(self, engine: Instance) -> str:
        """Raises EngineRefused for a name that has no address."""
        host, port = engine.host, engine.port
        try:
            return address.joined(str(ipaddress.ip_address(host)), port)
        except ValueError:
            pass
        known = self._found.get((host, port))
        if known is not None and self._clock() - known[1] < RESOLVED_SECONDS:
            return known[0]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVING_SECONDS):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError):
            if known is not None:
                # The resolver is away, the engine need not be.
                return known[0]
            raise EngineRefused("the name of an engine has no address", at=engine.id) from None
        # IPv4 first: what asks may have no IPv6.
        hosts = sorted((str(one[4][0]) for one in found), key=lambda text: ":" in text)
        if len(self._found) >= MOST_NAMES:
            self._found.clear()
        resolved = address.joined(hosts[0], port)
        self._found[host, port] = resolved, self._clock()
        return resolved

    async def named(
        self, fleet: Iterable[Endpoint], texts: Collection[str]
    ) -> dict[str, list[str]]:
        """Text -> the instances there, for those texts that name any; one without a port is of all ports."""
        there: dict[str, list[str]] = {}
        for endpoint in list(fleet):
            try:
                at = await self.of(endpoint.instance)
            except EngineRefused:
                continue
            host = at.rpartition(":")[0].strip("[]")
            for text in {at, host, f"[{host}]"}:
                there.setdefault(text, []).append(endpoint.instance.id)
        return {text: there[text] for text in texts if text in there}
