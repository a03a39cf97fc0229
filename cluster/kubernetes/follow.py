"""Changes of the EndpointSlices: a read of all, then a watch.

    read all, as of version 41    --> Listed
    watch from 41: 43, 44         --> Joined, Left
    a bookmark: 60
    the server ends the watch     ... as it does every few minutes: watch from 60
    the connection breaks         ... read all --> Listed
    no answer                     --> Lost, and again and again: read all --> Listed
    410, version 60 is forgotten  ... read all --> Listed

After anything but an orderly end everything is read anew: that is one small answer, and right
even if an older state of the cluster was restored meanwhile, in which a watch from
a version that was not there yet would say nothing. It is also read anew once in a while.

A watch that says nothing is what a quiet fleet looks like, and also a server that hangs. So a
small question is asked beside it, every few seconds, whose answer needs the server's store.
"""

import asyncio
import random
import time
from dataclasses import dataclass

from pdgate.cluster.directory import Lost, Tell
from pdgate.cluster.kubernetes import slices, wire
from pdgate.cluster.kubernetes.access import KubernetesAccess
from pdgate.cluster.kubernetes.fleet import SliceFleet
from pdgate.cluster.kubernetes.http import KubernetesHttp
from pdgate.cluster.kubernetes.wire import (
    Bookmark,
    Deleted,
    KubernetesError,
    WatchInterrupted,
    Written,
)

LONGEST_WAIT_SECONDS = 10.0
LONGEST_ASKED_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Timing:
    """
    Attributes:
        beat_seconds: How often the server is asked whether it is there.
        watch_seconds: How long a watch is to last.
        resync_seconds: After how long everything is read anew, when a watch ends.
        request_seconds: How long a request may take.
        first_wait_seconds: Before the next attempt, twice as long before each that follows.
    """

    beat_seconds: float = 5.0
    watch_seconds: int = 240
    resync_seconds: float = 600.0
    request_seconds: float = 5.0
    first_wait_seconds: float = 0.2


def pause_seconds(own: float, asked: float, luck: float) -> float:
    """Half of our own to all of it, as many gateways lose a server at once; or what it asks for.

    `luck` is 0 to 1.
    """
    return max(own * (0.5 + luck / 2), min(asked, LONGEST_ASKED_WAIT_SECONDS))


class KubernetesFollower:
    def __init__(self, access: KubernetesAccess, tell: Tell, timing: Timing) -> None:
        self._access = access
        self._tell = tell
        self._timing = timing
        self._fleet = SliceFleet()
        # Up to this version everything has been told; None if all is to be read anew.
        self._version: str | None = None
        self._read_at = 0.0
        self._is_lost = False
        self._wait_seconds = self._timing.first_wait_seconds

    async def run(self) -> None:
        while True:
            asked_seconds = 0.0
            try:
                await self._follow_once()
            except* KubernetesError as several:
                error = several.exceptions[0]
                assert isinstance(error, KubernetesError)
                asked_seconds = error.wait_seconds
                self._lose(str(error))
            await asyncio.sleep(pause_seconds(self._wait_seconds, asked_seconds, random.random()))
            self._wait_seconds = min(2 * self._wait_seconds, LONGEST_WAIT_SECONDS)

    async def _follow_once(self) -> None:
        """Until a watch is over. Raises KubernetesError, alone or in a group."""
        async with KubernetesHttp(self._access, self._timing.request_seconds) as http:
            version = self._version
            if version is None or self._is_due():
                version = await self._read_all(http)
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(self._beat(http))
                try:
                    await self._watch(http, version)
                except WatchInterrupted:
                    # It was there a moment ago: reading will show whether it still is.
                    self._version = None
                beat.cancel()

    def _is_due(self) -> bool:
        return time.monotonic() - self._read_at >= self._timing.resync_seconds

    async def _read_all(self, http: KubernetesHttp) -> str:
        found = await http.contents()
        self._version, self._read_at = found.version, time.monotonic()
        self._is_lost = False
        read = []
        for each in found.slices:
            read.append(slices.read(each))
            # A thousand endpoints take 12 ms.
            await asyncio.sleep(0)
        self._tell(self._fleet.list(read))
        return found.version

    async def _beat(self, http: KubernetesHttp) -> None:
        while True:
            await asyncio.sleep(self._timing.beat_seconds)
            await http.is_well()
            # It has gone well for a while, however little is said.
            self._wait_seconds = self._timing.first_wait_seconds

    async def _watch(self, http: KubernetesHttp, version: str) -> None:
        """Returns when the server ends it. Raises WatchInterrupted, KubernetesError."""
        seconds = self._timing.watch_seconds
        async with http.watch(version, seconds) as lines:
            async for text in lines:
                self._tell_line(text)
                self._wait_seconds = self._timing.first_wait_seconds

    def _tell_line(self, text: bytes) -> None:
        said = wire.line(text)
        match said:
            case Written(slice=written):
                events = self._fleet.put(slices.read(written))
            case Deleted(slice=gone):
                events = self._fleet.drop(slices.name_of(gone))
            case Bookmark():
                events = ()
        self._version = said.version
        for event in events:
            self._tell(event)

    def _lose(self, why: str) -> None:
        self._version = None
        if not self._is_lost:
            self._is_lost = True
            self._tell(Lost(why))
