"""Keeps one engine's entry in etcd: a lease, renewed while the engine lives.

    grant -> put -> keep alive, keep alive, ... -> put "draining" -> revoke
      ^               | the lease has ended: etcd lost it, or was away for too long
      '---------------'

What is said of an engine may change, and the key with it, of which the role is a part. Then the
new entry is written and the old one deleted in one transaction.

etcd away is no reason to give the lease up: etcd may still have it when it is back. The
entry is written as draining before the lease ends, so that readers can tell an engine that
leaves from one whose lease nobody could renew.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pdgate.cluster.directory import Listing
from pdgate.cluster.etcd_access import Access
from pdgate.cluster.etcd_http import EtcdHttp
from pdgate.cluster.etcd_wire import EtcdError, LeaseGone
from pdgate.cluster.member import Member

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RENEWALS = 3
"""Per lifetime of a lease, so that two may fail."""


class Announcement(Listing):
    """
    Attributes:
        lease_seconds: How long others go on believing in an engine that has died.
    """

    def __init__(self, access: Access, member: Member, lease_seconds: int) -> None:
        self._member = member
        self._lease_seconds = lease_seconds
        self._http = EtcdHttp(access)
        self._lease = ""
        self._complaint = ""
        # What etcd has for sure; None if the last write may have arrived or not.
        self._listed: Member | None = None
        # Under which it may have something of ours.
        self._keys: set[str] = set()
        self._changed = asyncio.Event()
        self._is_current = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listing]:
        async with self._http:
            keeping = asyncio.create_task(self._keep())
            try:
                yield self
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await self._leave()
                if not keeping.cancelled():
                    # Nothing but a bug of ours ends it early.
                    keeping.result()

    async def change(self, member: Member) -> None:
        self._member = member
        self._is_current.clear()
        self._changed.set()
        await self._is_current.wait()

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._renew()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._lease_seconds / RENEWALS)
            except LeaseGone:
                self._lease, self._listed = "", None
                self._keys.clear()
            except EtcdError as error:
                self._complain(str(error))
                self._http.try_next()
                await asyncio.sleep(RETRY_SECONDS)

    async def _renew(self) -> None:
        """One more step towards being listed, or staying so. Raises EtcdError."""
        if not self._lease:
            self._lease = await self._http.grant(self._lease_seconds)
        member = self._member
        if self._listed == member:
            await self._http.keep_alive(self._lease)
        else:
            await self._write(member)
        if self._member == member:
            self._is_current.set()
        if self._complaint:
            self._complaint = ""
            log.info("etcd answers again")

    async def _write(self, member: Member) -> None:
        before = sorted(self._keys - {member.key})
        self._keys.add(member.key)
        self._listed = None
        await self._http.put(member.key, member.value(), self._lease, instead_of=before)
        self._listed, self._keys = member, {member.key}
        log.info("etcd lists %s", member.key)

    async def _leave(self) -> None:
        if not self._lease:
            return
        try:
            if self._listed is not None:
                draining = self._listed.draining()
                await self._http.put(draining.key, draining.value(), self._lease)
            await self._http.revoke(self._lease)
        except LeaseGone:
            return
        except EtcdError as error:
            log.warning("left without telling etcd, whose lease ends by itself: %s", error)

    def _complain(self, why: str) -> None:
        """Once per reason: an outage is many failures."""
        if why != self._complaint:
            self._complaint = why
            log.warning("etcd does not list %s: %s", self._member.key, why)
