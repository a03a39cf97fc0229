"""Changes of the entries in etcd: a read of all, then a watch.

    read all at revision 41 --> Listed
    watch from 42: 43, 44   --> Joined, Left          progress = 44
    the connection breaks   --> Lost
    read all as it was at 44
        just as we know it: watch from 45 --> Resumed, 45, ...     nothing was missed
        else, or forgotten: read all      --> Listed

That look back is for a store that was lost and set up anew: it has the same name and, soon,
our revision, with other contents. A watch would go on in it as if nothing had happened.

A watch that says nothing is what a quiet fleet looks like, and also a dead connection or an
etcd without a majority. So the same member is asked a small question beside it, every
few seconds; if that fails, the watch is given up.
"""

import asyncio
import hashlib
from collections.abc import Mapping

from pdgate.cluster.bounded import TooLong
from pdgate.cluster.directory import MOST_ENTRIES, Left, Lost, Resumed, Tell, entry, listed
from pdgate.cluster.etcd import wire
from pdgate.cluster.etcd.access import EtcdAccess
from pdgate.cluster.etcd.http import EtcdHttp
from pdgate.cluster.etcd.wire import Changes, Compacted, Created, EtcdChange, EtcdError, NotThere
from pdgate.cluster.member import FOLDER

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0


class EtcdFollower:
    def __init__(self, access: EtcdAccess, tell: Tell, beat_seconds: float) -> None:
        self._http = EtcdHttp(access)
        self._tell = tell
        self._beat_seconds = beat_seconds
        # Up to this revision everything has been told; None if all is to be read anew.
        self._told: int | None = None
        # Key -> digest of its value: what it was need not be kept for comparing it.
        self._known: dict[str, bytes] = {}
        self._is_lost = False
        self._wait_seconds = FIRST_WAIT_SECONDS

    async def run(self) -> None:
        async with self._http:
            while True:
                try:
                    await self._follow_once()
                except* EtcdError as several:
                    self._lose(str(several.exceptions[0]))
                await asyncio.sleep(self._wait_seconds)
                self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)

    async def _follow_once(self) -> None:
        """Until the watch is over. Raises EtcdError, alone or in a group."""
        told = self._told
        if told is None or not await self._is_as_told(told):
            told = await self._read_all()
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._beat())
            await self._watch(told + 1)
            beat.cancel()

    async def _is_as_told(self, revision: int) -> bool:
        """Whether the store had, at the revision that we are at, what we know."""
        try:
            # Also asks for a majority: a member without one would open a watch all the same.
            found = await self._http.entries(FOLDER, revision)
        except NotThere:
            return False
        return _digests(found.entries) == self._known

    async def _read_all(self) -> int:
        found = await self._http.entries(FOLDER)
        self._told, self._known = found.revision, _digests(found.entries)
        self._is_lost = False
        self._tell(listed(found.entries))
        return found.revision

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            await self._http.is_well(FOLDER)

    async def _watch(self, revision: int) -> None:
        """Returns when everything has to be read anew. Raises EtcdError."""
        async with self._http.watch(FOLDER, revision) as lines:
            try:
                async for text in lines:
                    match wire.line(text):
                        case Created():
                            self._stands()
                        case Compacted():
                            # While we were about to watch.
                            self._told = None
                            return
                        case Changes(changes=changes):
                            for change in changes:
                                self._tell_change(change)
            except TooLong:
                # It would come again with every watch from before it.
                self._told = None
                return
        raise EtcdError(f"{self._http.endpoint} ended the watch")

    def _tell_change(self, change: EtcdChange) -> None:
        self._told = change.revision
        if change.value is None:
            self._known.pop(change.key, None)
            self._tell(Left(change.key))
        else:
            if len(self._known) <= MOST_ENTRIES:
                self._known[change.key] = _digest(change.value)
            # Else it is not all that is there, and after a loss everything is read anew.
            self._tell(entry(change.key, change.value))

    def _stands(self) -> None:
        self._wait_seconds = FIRST_WAIT_SECONDS
        if self._is_lost:
            self._is_lost = False
            self._tell(Resumed())

    def _lose(self, why: str) -> None:
        self._http.try_next()
        if not self._is_lost:
            self._is_lost = True
            self._tell(Lost(why))


def _digests(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: _digest(value) for key, value in entries.items()}


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
