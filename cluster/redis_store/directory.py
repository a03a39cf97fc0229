"""A directory on Redis 7, beside what else the gateway's replicas share there.

directory = RedisDirectory(url="redis://10.0.0.1:6379/0")
"""

from contextlib import AbstractAsyncContextManager

from pdgate.cluster.directory import Directory, Listing, Tell
from pdgate.cluster.member import Member
from pdgate.cluster.redis_store.access import check
from pdgate.cluster.redis_store.announce import Announcement
from pdgate.cluster.redis_store.contents import LONGEST_LEASE_SECONDS
from pdgate.cluster.redis_store.follow import Follower

LEASE_SECONDS = 10.0
LOOK_SECONDS = 1.0
SHORTEST_SECONDS = 0.1


class RedisDirectory(Directory):
    """
    Attributes:
        lease_seconds: How long an engine that died without a word stays listed.
        look_seconds: How often a follower looks though nothing was said.
    """

    def __init__(
        self, *, url: str, lease_seconds: float = LEASE_SECONDS, look_seconds: float = LOOK_SECONDS
    ) -> None:
        """Raises ValueError."""
        check(url)
        for name, seconds in (("lease_seconds", lease_seconds), ("look_seconds", look_seconds)):
            if not SHORTEST_SECONDS <= seconds <= LONGEST_LEASE_SECONDS:
                raise ValueError(
                    f"{name} is from {SHORTEST_SECONDS} to {LONGEST_LEASE_SECONDS:.0f}"
                )
        self._url = url
        self._lease_seconds = lease_seconds
        self._look_seconds = look_seconds

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        return Announcement(self._url, member, self._lease_seconds).running()

    async def follow(self, tell: Tell) -> None:
        await Follower(self._url, tell, self._look_seconds).run()
