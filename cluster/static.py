"""A directory of which everything is known beforehand: for programs that embed the gateway."""

import asyncio
from collections.abc import Collection

from pdgate.cluster.directory import Listed, Tell
from pdgate.cluster.member import Member
from pdgate.cluster.read_only import ReadOnly


class Static(ReadOnly):
    def __init__(self, members: Collection[Member]) -> None:
        self._members = members

    async def follow(self, tell: Tell) -> None:
        tell(Listed({member.key: member for member in self._members}))
        await asyncio.Event().wait()
