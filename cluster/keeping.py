"""One engine's entry in a store that gives it a lease, and may be away for a while.

    renew, renew, ...  --> what is announced is listed, for as long as this goes on
      | it fails
    wait, renew        --> a store that is away may still have the lease when it is back
      | the block ends
    leave              --> written as draining first, so that readers can tell an engine that
                           leaves from one whose lease could not be renewed

A renewal that finds the entry gone has two meanings. Where the lease could have run out, or the store
has lost its contents, the entry is made again. Else it was taken away by another hand (Revoked): it is
not made again, and the engine hears of it.

What is said of an engine may change, and the key with it, of which the role is a part; then
the store has to do both in one step.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, ClassVar

from pdgate.cluster.directory import Listing, Revoked, StoreAway
from pdgate.cluster.jobs import Jobs
from pdgate.cluster.member import Member

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RENEWALS = 3
"""Per lifetime of a lease, so that two may fail."""


class Keeping(Listing):
    """
    Attributes:
        store: What it is called in the log.
    """

    store: ClassVar[str]

    def __init__(self, member: Member, lease_seconds: float) -> None:
        """`lease_seconds`: how long others go on believing in an engine that has died."""
        self._member = member
        self._every_seconds = lease_seconds / RENEWALS
        self._complaint = ""
        self._changed = asyncio.Event()
        self._is_current = asyncio.Event()
        self._revoked = asyncio.Event()

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[Any]:
        """In its block the store can be asked."""

    @abstractmethod
    async def _renew(self, member: Member) -> None:
        """Lists the member, or has it stay listed. Raises StoreAway, Revoked."""

    @abstractmethod
    async def _leave(self) -> None:
        """First draining, then gone; nothing if it was never listed. Raises StoreAway."""

    def _failed(self) -> None:
        """Before another try."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listing]:
        async with self._open():
            jobs = Jobs()
            jobs.add(f"announcement in {self.store}", self._keep)
            jobs.start()
            try:
                yield self
            finally:
                await jobs.stop()
                try:
                    if not self._revoked.is_set():
                        await self._leave()
                except StoreAway as error:
                    log.warning(
                        "left without telling %s, where the lease ends by itself: %s",
                        self.store,
                        error,
                    )

    async def revoked(self) -> None:
        await self._revoked.wait()

    async def change(self, member: Member) -> None:
        self._member = member
        self._is_current.clear()
        self._changed.set()
        await self._is_current.wait()

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            member = self._member
            try:
                await self._renew(member)
            except StoreAway as error:
                self._complain(str(error))
                self._failed()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Revoked:
                log.warning("%s was taken out of %s by another hand", member.key, self.store)
                self._revoked.set()
                # A job has no end of its own.
                await asyncio.Event().wait()
            if self._member == member:
                self._is_current.set()
            if self._complaint:
                self._complaint = ""
                log.info("%s answers again", self.store)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._every_seconds)

    def _complain(self, why: str) -> None:
        """Once per reason: an outage is many failures."""
        if why != self._complaint:
            self._complaint = why
            log.warning("%s does not list %s: %s", self.store, self._member.key, why)
