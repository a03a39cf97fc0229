"""Keeps one engine's entry in etcd: a lease, renewed while the engine lives.

    grant -> put -> keep alive, keep alive, ... -> put "draining" -> revoke
      ^               | the lease has ended: etcd lost it, or was away for too long
      '---------------'

etcd away is no reason to give the lease up: etcd may still have it when it is back. The
entry is written as draining before the lease ends, so that readers can tell an engine that
leaves from one whose lease nobody could renew.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pdgate.cluster.etcd_http import EtcdHttp
from pdgate.cluster.etcd_wire import EtcdError, LeaseGone
from pdgate.cluster.member import Member

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
RENEWALS = 3
"""Per lifetime of a lease, so that two may fail."""


class Announcement:
    """
    Attributes:
        lease_seconds: How long others go on believing in an engine that has died.
    """

    def __init__(self, endpoints: Sequence[str], member: Member, lease_seconds: int) -> None:
        self._member = member
        self._lease_seconds = lease_seconds
        self._http = EtcdHttp(endpoints)
        self._lease = ""
        self._is_listed = False
        self._complaint = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._http:
            keeping = asyncio.create_task(self._keep())
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await self._leave()
                if not keeping.cancelled():
                    # Nothing but a bug of ours ends it early.
                    keeping.result()

    async def _keep(self) -> None:
        while True:
            try:
                await self._renew()
                await asyncio.sleep(self._lease_seconds / RENEWALS)
            except LeaseGone:
                self._lease, self._is_listed = "", False
            except EtcdError as error:
                self._complain(str(error))
                self._http.try_next()
                await asyncio.sleep(RETRY_SECONDS)

    async def _renew(self) -> None:
        """One more step towards being listed, or staying so. Raises EtcdError."""
        if not self._lease:
            self._lease = await self._http.grant(self._lease_seconds)
        if self._is_listed:
            await self._http.keep_alive(self._lease)
        else:
            await self._http.put(self._member.key, self._member.value(), self._lease)
            self._is_listed = True
            log.info("etcd lists %s", self._member.key)
        if self._complaint:
            self._complaint = ""
            log.info("etcd answers again")

    async def _leave(self) -> None:
        if not self._lease:
            return
        try:
            if self._is_listed:
                draining = self._member.draining()
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
