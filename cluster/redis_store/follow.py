"""Changes of the entries in Redis.

    subscribe, look      --> Listed
    a word on the channel, or a second without any: look again
        another revision --> what differs                     (else Redis says only that)
        another id       --> Lost, Listed: it was emptied, or is another one
    it does not answer   --> Lost
    it does again        --> Resumed, and what differs; or Listed, if it has another id

A word that was missed costs a second. Looking is also what finds out that leases have ended,
and that a connection that is open is dead. A writer without the scripts that forgets
the revision is seen by the look that is done in full, every ten seconds.
"""

import asyncio
import secrets
import time

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from pdgate.cluster.directory import MOST_BYTES, MOST_ENTRIES, Lost, Resumed, StoreAway, Tell
from pdgate.cluster.member import MAX_VALUE_BYTES
from pdgate.cluster.polled import Seen, changes
from pdgate.cluster.redis_client import asked
from pdgate.cluster.redis_store import scripts
from pdgate.cluster.redis_store.access import Script, connected
from pdgate.cluster.redis_store.contents import Found, found

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
GATHER_SECONDS = 0.03
"""A fleet that starts is many changes, and few looks."""
FULL_SECONDS = 10.0
UNKNOWN = ("", "")


class RedisFollower:
    def __init__(self, url: str, tell: Tell, look_seconds: float) -> None:
        self._url = url
        self._tell = tell
        self._look_seconds = look_seconds
        self._known: Found | None = None
        self._seen = Seen({})
        self._is_lost = False
        self._in_full_at = 0.0
        self._wait_seconds = FIRST_WAIT_SECONDS

    async def run(self) -> None:
        async with connected(self._url) as client:
            while True:
                try:
                    await self._follow_once(client)
                except StoreAway as error:
                    self._lose(str(error))
                await asyncio.sleep(self._wait_seconds)
                self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)

    async def _follow_once(self, client: Redis) -> None:
        """Raises StoreAway."""
        look = Script(client, scripts.LOOK)
        async with client.pubsub(ignore_subscribe_messages=True) as news:
            await asked(news.subscribe(scripts.CHANGES))
            while True:
                await self._look(look)
                self._wait_seconds = FIRST_WAIT_SECONDS
                await self._heard(news)

    async def _heard(self, news: PubSub) -> None:
        """Returns when there may be something to see. Raises StoreAway."""
        if await asked(news.get_message(timeout=self._look_seconds)) is not None:
            await asyncio.sleep(GATHER_SECONDS)
            while await asked(news.get_message()) is not None:
                pass

    async def _look(self, look: Script) -> None:
        """Raises StoreAway."""
        now = time.monotonic()
        in_full = self._known is None or self._is_lost or now >= self._in_full_at + FULL_SECONDS
        version = UNKNOWN if self._known is None or in_full else self._known.version
        # A value that is cut is longer than any that is read.
        bounds = (MOST_ENTRIES, MOST_BYTES, MAX_VALUE_BYTES + 1)
        self._take(found(await look(secrets.token_hex(8), *version, *bounds)))
        if in_full:
            self._in_full_at = now

    def _take(self, now: Found) -> None:
        before, self._known = self._known, now
        if now.seen is None:
            return
        if before is None or before.id != now.id or before.revision > now.revision:
            if before is not None and not self._is_lost:
                # Engines announced there are about to announce themselves here: none is gone.
                self._tell(Lost("Redis has been emptied, or is another one"))
            self._tell(now.seen.listed())
        else:
            if self._is_lost:
                self._tell(Resumed())
            for event in changes(self._seen, now.seen):
                self._tell(event)
        self._seen, self._is_lost = now.seen, False

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._tell(Lost(why))
