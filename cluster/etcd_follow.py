"""Tells what happens to the entries in etcd: reads them once, then watches.

    read all at revision 41 --> Listed
    watch from 42: 43, 44   --> Joined, Left          progress = 44
    the connection breaks   --> Lost
    watch from 45           --> Resumed, 46, ...      nothing was missed
        or: 45 is compacted, or the store is another one or older than 44
    read all                --> Listed

A watch that says nothing is what a quiet fleet looks like, and also a dead connection or an
etcd without a majority. So the same member is asked a small question beside it, every
few seconds; if that fails, the watch is given up.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdgate.cluster import etcd_wire as wire
from pdgate.cluster.directory import Left, Lost, Resumed, Tell, entry, listed
from pdgate.cluster.etcd_http import EtcdHttp
from pdgate.cluster.etcd_wire import Change, Changes, Compacted, Created, EtcdError
from pdgate.cluster.member import FOLDER

log = logging.getLogger(__name__)

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Up to where everything has been told, and of which store."""

    revision: int
    cluster: str

    def goes_on_in(self, created: Created) -> bool:
        """Whether a watch on that store misses nothing: another one counts otherwise."""
        return created.cluster == self.cluster and created.revision >= self.revision


class Follower:
    def __init__(self, endpoints: Sequence[str], tell: Tell, beat_seconds: float) -> None:
        self._http = EtcdHttp(endpoints)
        self._tell = tell
        self._beat_seconds = beat_seconds
        self._progress: Progress | None = None
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
        if self._progress is None:
            found = await self._http.entries(FOLDER)
            self._progress = Progress(found.revision, found.cluster)
            self._is_lost = False
            self._tell(listed(found.entries))
        else:
            # A member without a majority opens watches too, and one that lags behind is
            # not another store; to answer this, it has to have caught up.
            await self._http.is_well(FOLDER)
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._beat())
            await self._watch(self._progress)
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_seconds)
            await self._http.is_well(FOLDER)

    async def _watch(self, progress: Progress) -> None:
        """Returns when everything has to be read anew. Raises EtcdError."""
        async with self._http.watch(FOLDER, progress.revision + 1) as lines:
            async for text in lines:
                if not text:
                    continue
                match wire.line(text):
                    case Created() as created if progress.goes_on_in(created):
                        self._stands()
                    case Created() | Compacted():
                        log.info("the watch on etcd cannot go on: everything is read anew")
                        self._progress = None
                        return
                    case Changes(changes=changes):
                        self._tell_all(changes)
        raise EtcdError(f"{self._http.endpoint} ended the watch")

    def _tell_all(self, changes: Sequence[Change]) -> None:
        assert self._progress is not None
        for change in changes:
            if change.value is None:
                self._tell(Left(change.key))
            else:
                self._tell(entry(change.key, change.value))
            revision = max(self._progress.revision, change.revision)
            self._progress = replace(self._progress, revision=revision)

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
