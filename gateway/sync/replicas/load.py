"""Our engines' accounts as an entry, and the others' entries in our accounts. No clock, and no I/O but turns for calls.

ours      this process's part of each account --> told()
theirs    take_in(entries) --> added up, for each engine --> `far` of its account
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pdgate.gateway.sync.replicas.entry import BadEntry, Entry, Load, decode, encode, name_of
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.neighbours import Numbers, SharedEndpoint

log = logging.getLogger(__name__)

NOTHING: Numbers = (0, 0, 0, 0)

TURN_BYTES: Final = 64 << 10
"""Of entries that are read, or added up, in one turn of the event loop: 2 ms."""


class FarLoad:
    """
    Attributes:
        replicas: Other gateways that were there at the last look.
        refused: Entries that could not be used, each of them once.
    """

    def __init__(self, endpoints: Endpoints, gateway: str) -> None:
        """`gateway`: the same for all workers of one, and for no other."""
        self.replicas: frozenset[str] = frozenset()
        self.refused = 0
        self._endpoints = endpoints
        self._gateway = gateway
        self._read: dict[str, tuple[bytes, Entry | None]] = {}
        self._theirs: dict[str, Numbers] = {}

    def told(self) -> bytes:
        """What this process has in flight now."""
        load: dict[str, Numbers] = {}
        for endpoint in self._endpoints:
            own = SharedEndpoint.of(endpoint).own(endpoint)
            if any(own):
                name = name_of(endpoint.instance)
                load[name] = _sum(load.get(name, NOTHING), own)
        return encode(self._gateway, load)

    async def take_in(self, entries: Mapping[str, bytes]) -> None:
        """Process -> its entry, of all whose lease has not ended."""
        if any(self._changed(process, data) for process, data in entries.items()) or (
            entries.keys() != self._read.keys()
        ):
            read: dict[str, tuple[bytes, Entry | None]] = {}
            done = 0
            for process, data in entries.items():
                if self._changed(process, data):
                    done += len(data)
                read[process] = self._known(process, data)
                if done > TURN_BYTES:
                    done = 0
                    await asyncio.sleep(0)
            self._read = read
            await self._add_up()
        self._apply()

    def forget(self) -> None:
        """Forget the load of the others."""
        self.replicas, self._read, self._theirs = frozenset(), {}, {}
        self._apply()

    def _changed(self, process: str, data: bytes) -> bool:
        known = self._read.get(process)
        return known is None or known[0] != data

    def _known(self, process: str, data: bytes) -> tuple[bytes, Entry | None]:
        known = self._read.get(process)
        if known is not None and known[0] == data:
            return known
        try:
            return data, decode(data)
        except BadEntry as error:
            self.refused += 1
            # Once for each process, unless it has been understood in between.
            if known is None or known[1] is not None:
                log.warning("what the replica %s tells of its load is ignored: %s", process, error)
            return data, None

    async def _add_up(self) -> None:
        theirs: Load = {}
        replicas = set()
        done = 0
        for data, entry in self._read.values():
            done += len(data)
            if done > TURN_BYTES:
                done = 0
                await asyncio.sleep(0)
            if entry is not None and entry.gateway != self._gateway:
                replicas.add(entry.gateway)
                for name, numbers in entry.load.items():
                    theirs[name] = _sum(theirs.get(name, NOTHING), numbers)
        self.replicas = frozenset(replicas)
        self._theirs = theirs

    def _apply(self) -> None:
        """Each time, as there may be other instances by now."""
        for endpoint in self._endpoints:
            shared = SharedEndpoint.of(endpoint)
            theirs = self._theirs.get(name_of(endpoint.instance), NOTHING)
            shared.take_in(endpoint, shared.far, *theirs)
            shared.far.count = len(self.replicas)


def _sum(one: Numbers, other: Numbers) -> Numbers:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
