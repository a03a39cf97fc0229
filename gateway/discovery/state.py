"""State of the directory in a file, for our next start.

A gateway that starts while the directory is away would know no engine. It takes the list of its
last life instead; each engine is looked at before it gets a call, as any newcomer is, and the
directory has the last word as soon as it answers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pdgate.cluster import remembered
from pdgate.cluster.complaint import Complaint
from pdgate.cluster.member import Member
from pdgate.cluster.remembered import BadFile, Remembered

FILE_NAME = "fleet.json"
LEAST_SECONDS = 1.0
"""Between two writes: a fleet that starts is many changes."""
MOST_SECONDS = 60.0
"""After which the list is written again, so that its age says when it was last true."""

log = logging.getLogger(__name__)


class DiscoveryState:
    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970, as the file outlives the process."""
        self._path = folder / FILE_NAME
        self._clock = clock
        self._changed = asyncio.Event()
        self._complaint = Complaint(log, "the engines are not remembered for the next start")

    def recall(self) -> Remembered | None:
        """Return what was remembered; None if nothing can be used, and the log says why."""
        try:
            return remembered.read(self._path, self._clock())
        except BadFile as error:
            log.warning("the engines of the last start are not used: %s", error)
            return None

    def changed(self) -> None:
        self._changed.set()

    async def keep(self, current: Callable[[], Mapping[str, Member] | None]) -> None:
        """Writes what `current` says, until cancelled; None if it is not known to be true."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), MOST_SECONDS)
            self._changed.clear()
            members = current()
            if members is not None:
                await self._write(members)
            await asyncio.sleep(LEAST_SECONDS)

    async def _write(self, members: Mapping[str, Member]) -> None:
        try:
            await asyncio.to_thread(remembered.write, self._path, members, self._clock())
        except OSError as error:
            self._complaint.about(f"{self._path}: {error.strerror}")
        else:
            self._complaint.over()
