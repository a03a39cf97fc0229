"""A directory on etcd 3.4 or newer, over its HTTP gateway.

    directory = opened(urls="http://10.0.0.1:2379,http://10.0.0.2:2379")

The layout of AWS Neuron's disaggregated inference, /workers/{prefill|decode}/{ip}/{port}, so
that both can share an etcd; `both` and `plain` are ours. Why not one of the packages for
etcd: docs/decisions/0006-etcd-over-http.md.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final

from pdgate.cluster import address
from pdgate.cluster.directory import Directory, Listing, Revoked, Tell
from pdgate.cluster.etcd import login
from pdgate.cluster.etcd.access import EtcdAccess
from pdgate.cluster.etcd.follow import EtcdFollower
from pdgate.cluster.etcd.http import EtcdHttp
from pdgate.cluster.etcd.login import Login
from pdgate.cluster.etcd.wire import LeaseGone, NotThere
from pdgate.cluster.keeping import Keeping
from pdgate.cluster.member import Member
from pdgate.cluster.trust import check_ca

LEASE_SECONDS = 10
LONGEST_LEASE_SECONDS: Final = 3600
BEAT_SECONDS = 2.0

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while this machine sleeps, as etcd's does."""

log = logging.getLogger(__name__)


def now() -> float:
    return time.clock_gettime(CLOCK)


class EtcdAnnouncement(Keeping):
    """One engine's entry in etcd: a lease, renewed while the engine lives.

        grant -> put -> keep alive, keep alive, ... -> put "draining" -> revoke
          ^               | the lease has ended
          |   it could:   | more than its time has passed since etcd last renewed it, or this etcd
          |               | never had our entry (it was set up anew)
          '---------------' it could not: it was revoked, or our entry was deleted

    etcd answers alike for a lease that ran out and one that was revoked. When the key changes, the
    new entry is written and the old one deleted in one transaction.
    """

    store: ClassVar = "etcd"

    def __init__(self, access: EtcdAccess, member: Member, lease_seconds: int) -> None:
        super().__init__(member, lease_seconds)
        self._lease_seconds = lease_seconds
        self._http = EtcdHttp(access)
        self._lease = ""
        # What etcd has for sure; None if the last write may have arrived or not.
        self._listed: Member | None = None
        # Under which it may have something of ours.
        self._keys: set[str] = set()
        # When the last renewal was asked for, and a revision at which etcd had our entry.
        self._kept_at = 0.0
        self._kept_revision = 0
        # Another process at our address may have written its own entry over ours.
        self._is_ours = False

    def _open(self) -> EtcdHttp:
        return self._http

    async def _renew(self, member: Member) -> None:
        """Raises EtcdError, Revoked."""
        try:
            await self._hold(member)
        except LeaseGone:
            if await self._was_revoked():
                raise Revoked from None
            self._lease, self._listed = "", None
            self._keys.clear()
            await self._hold(member)

    async def _hold(self, member: Member) -> None:
        if self._lease:
            # Before a write as well, which prolongs no lease.
            asked_at = now()
            revision = await self._http.keep_alive(self._lease)
            self._kept_at = asked_at
            await self._look(revision)
        else:
            asked_at = now()
            self._lease = await self._http.grant(self._lease_seconds)
            self._kept_at = asked_at
        if self._listed != member:
            await self._write(member)

    async def _look(self, revision: int) -> None:
        """`revision`: of the renewal. Raises Revoked if our entry is gone though its lease lives; EtcdError."""
        if (listed := self._listed) is None:
            return
        found = (await self._http.entries(listed.key)).entries.get(listed.key)
        if found is None and self._is_ours:
            raise Revoked
        if found is None:
            # The one that had taken the place has left.
            self._listed = None
        self._is_ours = found == listed.value()
        if self._is_ours:
            self._kept_revision = revision

    async def _was_revoked(self) -> bool:
        """Of a lease that is gone. Raises EtcdError."""
        listed = self._listed
        if listed is None or not self._is_ours:
            return False
        if now() >= self._kept_at + self._lease_seconds:
            return False
        try:
            then = await self._http.entries(listed.key, self._kept_revision)
        except NotThere:
            return False
        return then.entries.get(listed.key) == listed.value()

    async def _write(self, member: Member) -> None:
        before = sorted(self._keys - {member.key})
        self._keys.add(member.key)
        self._listed = None
        self._kept_revision = await self._http.put(
            member.key, member.value(), self._lease, instead_of=before
        )
        self._listed, self._keys, self._is_ours = member, {member.key}, True
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


class Etcd(Directory):
    """
    Attributes:
        lease_seconds: How long an engine that died without a word stays listed.
        beat_seconds: How often a follower asks whether etcd is still there.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        lease_seconds: int = LEASE_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
        login: Login | None = None,
        ca_file: str = "",
    ) -> None:
        self._access = EtcdAccess(endpoints, login, ca_file)
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        return EtcdAnnouncement(self._access, member, self._lease_seconds).running()

    async def follow(self, tell: Tell) -> None:
        await EtcdFollower(self._access, tell, self._beat_seconds).run()


def opened(
    *, urls: str, user_file: str = "", ca_file: str = "", lease_seconds: int = LEASE_SECONDS
) -> Etcd:
    """Directory of URLs between commas, and files with name:password and with certificates, or "".

    Raise ValueError.
    """
    check_ca(ca_file)
    if not 1 <= lease_seconds <= LONGEST_LEASE_SECONDS:
        raise ValueError(f"lease_seconds is from 1 to {LONGEST_LEASE_SECONDS}")
    return Etcd(
        address.endpoints(urls), lease_seconds, login=login.read(user_file), ca_file=ca_file
    )
