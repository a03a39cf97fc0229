"""A directory on Redis 7, beside what else the gateway's replicas share there.

directory = RedisDirectory(url="redis://10.0.0.1:6379/0")
"""

import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pdgate.cluster.directory import Directory, Listing, Revoked, StoreAway, Tell
from pdgate.cluster.keeping import Keeping
from pdgate.cluster.member import Member
from pdgate.cluster.redis_store import scripts
from pdgate.cluster.redis_store.access import Script, check, connected
from pdgate.cluster.redis_store.contents import LONGEST_LEASE_SECONDS
from pdgate.cluster.redis_store.follow import RedisFollower

LEASE_SECONDS = 10.0
LOOK_SECONDS = 1.0
SHORTEST_SECONDS = 0.1
HELD, MISSING = b"held", b"missing"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """What a renewal found.

    Attributes:
        id: Of this life of the store.
        revision: Of its contents.
        at_ms: By the clock of Redis, by which leases end.
    """

    word: bytes
    id: bytes
    revision: int
    at_ms: int

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Self:
        """Raises StoreAway for what no script of ours answers."""
        try:
            word, id_, revision, at_ms = reply
            return cls(bytes(word), bytes(id_), int(revision), int(at_ms))
        except (TypeError, ValueError):
            raise StoreAway(f"Redis: {str(reply)[:80]} is no answer to a renewal") from None

    def was_taken(self, missing: "HeldLease", lease_ms: int) -> bool:
        """Whether an entry that is missing now was taken away: neither its time nor the store is over.

        A store that has lost its last writes, as a replica that took over, has an earlier revision.
        """
        same = self.id == missing.id and missing.revision >= self.revision
        return same and missing.at_ms - self.at_ms < lease_ms


class RedisAnnouncement(Keeping):
    """One engine's entry in Redis.

    put -> renew, renew, ... -> put "draining" -> drop
     ^       | missing, and the lease has ended by Redis' clock, or Redis has lost its contents
     '-------'
             | missing though it had time left: it was taken away, and is not written again
             | another: a process that came later has the place; it is let be, as long as it is there
    """

    store: ClassVar = "Redis"

    def __init__(self, url: str, member: Member, lease_seconds: float) -> None:
        super().__init__(member, lease_seconds)
        self._url = url
        self._lease_ms = round(1000 * lease_seconds)
        # What Redis has for sure; None if the last write may have arrived or not.
        self._listed: Member | None = None
        # All that it may have of ours.
        self._written: dict[str, bytes] = {}
        # The last time that it was found to have it; None if another had the place since.
        self._held: HeldLease | None = None

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with connected(self._url) as client:
            self._put = Script(client, scripts.PUT)
            self._hold = Script(client, scripts.RENEW)
            self._drop = Script(client, scripts.DROP)
            yield

    async def _renew(self, member: Member) -> None:
        if self._listed == member:
            now = HeldLease.of(await self._hold(self._lease_ms, member.key, member.value()))
            if now.word != MISSING:
                self._held = now if now.word == HELD else None
                return
            if self._held is not None and self._held.was_taken(now, self._lease_ms):
                raise Revoked
            self._listed = None
        await self._write(member)

    async def _write(self, member: Member) -> None:
        old = [
            word for key in self._written for word in (key, self._written[key]) if key != member.key
        ]
        self._listed, self._written[member.key] = None, member.value()
        new_id = secrets.token_hex(8)
        put = await self._put(self._lease_ms, member.key, member.value(), "", new_id, *old)
        self._held = HeldLease.of(put)
        self._listed, self._written = member, {member.key: member.value()}
        log.info("Redis lists %s", member.key)

    async def _leave(self) -> None:
        if self._listed is not None:
            draining = self._listed.draining()
            self._written[draining.key] = draining.value()
            ours = self._listed.value()
            new_id = secrets.token_hex(8)
            await self._put(self._lease_ms, draining.key, draining.value(), ours, new_id)
        if self._written:
            await self._drop(*[word for pair in self._written.items() for word in pair])


class RedisDirectory(Directory):
    """
    Attributes:
        lease_seconds: How long an engine that died without a word stays listed.
        look_seconds: How often a follower looks though nothing was said.
    """

    def __init__(
        self, *, url: str, lease_seconds: float = LEASE_SECONDS, look_seconds: float = LOOK_SECONDS
    ) -> None:
        """Raises ValueError."""
        check(url)
        for name, seconds in (("lease_seconds", lease_seconds), ("look_seconds", look_seconds)):
            if not SHORTEST_SECONDS <= seconds <= LONGEST_LEASE_SECONDS:
                raise ValueError(
                    f"{name} is from {SHORTEST_SECONDS} to {LONGEST_LEASE_SECONDS:.0f}"
                )
        self._url = url
        self._lease_seconds = lease_seconds
        self._look_seconds = look_seconds

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        return RedisAnnouncement(self._url, member, self._lease_seconds).running()

    async def follow(self, tell: Tell) -> None:
        await RedisFollower(self._url, tell, self._look_seconds).run()
