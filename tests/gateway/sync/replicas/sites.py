"""Processes of several gateways, each with its own instances, and a table of entries that they share."""

from collections.abc import Mapping, Sequence

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.sync.replicas.base import LoadEntries, ReplicaStream
from pdgate.gateway.sync.replicas.exchange import LEASE_SECONDS, ReplicaExchange
from pdgate.gateway.sync.replicas.load import FarLoad
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.reservation import Reservation
from tests.support.clock import Clock

ENGINES = [Instance(f"e{n}", f"http://10.0.0.{n}", Role.PLAIN, "plain") for n in range(3)]


class Table:
    """Entries with leases, as Redis keeps them; `away` while it does not answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.away = False
        self.writes = 0
        self.entries: dict[str, tuple[bytes, float]] = {}

    def seen_by(self, process: str) -> "TableEntries":
        return TableEntries(self, process)


class TableEntries(LoadEntries):
    def __init__(self, table: Table, process: str) -> None:
        self._table, self._process = table, process

    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        table = self._table
        if table.away:
            raise StoreAway("Redis: refused")
        now = table.clock()
        if entry is not None:
            table.writes += 1
            table.entries[self._process] = entry, now + LEASE_SECONDS
        return {
            process: told
            for process, (told, until) in table.entries.items()
            if process != self._process and until > now
        }

    async def close(self) -> None:
        self._table.entries.pop(self._process, None)


class Told:
    """What was said, of which each has a place of its own; `away` while nobody can."""

    def __init__(self) -> None:
        self.away = False
        self.batches: list[bytes] = []

    def seen(self) -> "ToldStream":
        return ToldStream(self)


class ToldStream(ReplicaStream):
    def __init__(self, told: Told) -> None:
        self._told, self._read = told, 0

    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        told = self._told
        if told.away:
            raise StoreAway("Redis: refused")
        if batch is not None:
            told.batches.append(batch)
        news = told.batches[self._read :]
        self._read = len(told.batches)
        return news

    async def close(self) -> None:
        pass


class Process:
    """One process of a gateway, without the calls."""

    def __init__(self, table: Table, gateway: str, name: str = "") -> None:
        self.endpoints = Endpoints(ENGINES)
        self.load = FarLoad(self.endpoints, gateway)
        self.entries = table.seen_by(f"{gateway}{name}")
        self.exchange = ReplicaExchange(self.load, self.entries, table.clock)

    def endpoint(self, engine: int = 0) -> Endpoint:
        endpoint = self.endpoints.get(f"e{engine}")
        assert endpoint is not None
        return endpoint

    def call(self, engine: int = 0, tokens: int = 10) -> Reservation:
        return Reservation(self.endpoint(engine), tokens, reads=True)

    def account(self, engine: int = 0) -> tuple[int, int, int, int]:
        found = self.endpoint(engine)
        return found.calls, found.tokens, found.unread_tokens, found.answering
