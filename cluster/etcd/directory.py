"""A directory on etcd 3.4 or newer, over its HTTP gateway.

    directory = opened(urls="http://10.0.0.1:2379,http://10.0.0.2:2379")

The layout of AWS Neuron's disaggregated inference, /workers/{prefill|decode}/{ip}/{port}, so
that both can share an etcd; `both` and `plain` are ours. Why not one of the packages for
etcd: docs/decisions/0006-etcd-over-http.md.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from pdgate.cluster import address
from pdgate.cluster.directory import Directory, Listing, Tell
from pdgate.cluster.etcd import login
from pdgate.cluster.etcd.access import Access
from pdgate.cluster.etcd.announce import Announcement
from pdgate.cluster.etcd.follow import Follower
from pdgate.cluster.etcd.login import Login
from pdgate.cluster.member import Member
from pdgate.cluster.trust import check_ca

LEASE_SECONDS = 10
BEAT_SECONDS = 2.0


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
        self._access = Access(endpoints, login, ca_file)
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        return Announcement(self._access, member, self._lease_seconds).running()

    async def follow(self, tell: Tell) -> None:
        await Follower(self._access, tell, self._beat_seconds).run()


def opened(*, urls: str, user_file: str = "", ca_file: str = "") -> Etcd:
    """Of URLs between commas, and files with name:password and with certificates, or "".

    Raises ValueError.
    """
    check_ca(ca_file)
    return Etcd(address.endpoints(urls), login=login.read(user_file), ca_file=ca_file)
