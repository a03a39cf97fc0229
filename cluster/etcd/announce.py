"""Keeps one engine's entry in etcd: a lease, renewed while the engine lives.

    grant -> put -> keep alive, keep alive, ... -> put "draining" -> revoke
      ^               | the lease has ended: etcd lost it, or was away for too long
      '---------------'

When the key changes, the new entry is written and the old one deleted in one transaction.
"""

import logging
from typing import ClassVar

from pdgate.cluster.etcd.access import Access
from pdgate.cluster.etcd.http import EtcdHttp
from pdgate.cluster.etcd.wire import LeaseGone
from pdgate.cluster.keeping import Keeping
from pdgate.cluster.member import Member

log = logging.getLogger(__name__)


class Announcement(Keeping):
    store: ClassVar = "etcd"

    def __init__(self, access: Access, member: Member, lease_seconds: int) -> None:
        super().__init__(member, lease_seconds)
        self._lease_seconds = lease_seconds
        self._http = EtcdHttp(access)
        self._lease = ""
        # What etcd has for sure; None if the last write may have arrived or not.
        self._listed: Member | None = None
        # Under which it may have something of ours.
        self._keys: set[str] = set()

    def _open(self) -> EtcdHttp:
        return self._http

    async def _renew(self, member: Member) -> None:
        """Raises EtcdError."""
        try:
            await self._hold(member)
        except LeaseGone:
            self._lease, self._listed = "", None
            self._keys.clear()
            await self._hold(member)

    async def _hold(self, member: Member) -> None:
        if not self._lease:
            self._lease = await self._http.grant(self._lease_seconds)
        if self._listed == member:
            await self._http.keep_alive(self._lease)
        else:
            await self._write(member)

    async def _write(self, member: Member) -> None:
        before = sorted(self._keys - {member.key})
        self._keys.add(member.key)
        self._listed = None
        await self._http.put(member.key, member.value(), self._lease, instead_of=before)
        self._listed, self._keys = member, {member.key}
        log.info("etcd lists %s", member.key)

    def _failed(self) -> None:
        self._http.try_next()

    async def _leave(self) -> None:
        """Raises EtcdError."""
        if not self._lease:
            return
        try:
            if self._listed is not None:
                draining = self._listed.draining()
                await self._http.put(draining.key, draining.value(), self._lease)
            await self._http.revoke(self._lease)
        except LeaseGone:
            return
