"""Two engines that hand KV over: known to each other once, so that a call names blocks only.

    meeting = Meeting(prefill, decode)          at the hand-shake; refuses what cannot be
    for pair in meeting.to(rank, choose):       what one destination rank gets

A peer that restarted is a new peer, with new regions: it takes a new Meeting.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pdgate.transfer.plan.agree import agree
from pdgate.transfer.plan.layout import KvLayout, Rank
from pdgate.transfer.plan.links import Choose, Link, links_to
from pdgate.transfer.plan.memory import RankMemory, check
from pdgate.transfer.plan.pair import Pair


@dataclass(frozen=True, slots=True)
class EngineReplica:
    """One data-parallel replica of an engine.

    Attributes:
        memories: Of each of its ranks.
        region_bytes: Length of each rank's registered region.
    """

    layout: KvLayout
    dp: int
    memories: Mapping[Rank, RankMemory]
    region_bytes: Mapping[Rank, int]

    def check(self) -> None:
        """Raises OutOfBounds if a rank is missing or its pages lie outside its region."""
        for rank in self.layout.ranks(self.dp):
            check(self.layout, rank, self.memories.get(rank), self.region_bytes.get(rank, 0))


class Meeting:
    """Any thread may use it. What it has worked out it keeps."""

    def __init__(self, source: EngineReplica, destination: EngineReplica) -> None:
        """Raises LayoutMismatch, OutOfBounds, IndexError (no such replica)."""
        agree(source.layout, destination.layout)
        source.check()
        destination.check()
        self.source = source
        self.destination = destination
        self._pairs: dict[Link, Pair] = {}

    def to(self, rank: Rank, choose: Choose) -> Iterator[Pair]:
        """Between one destination rank and its sources."""
        source, destination = self.source, self.destination
        for link in links_to(source.layout, source.dp, destination.layout, rank, choose):
            yield self._pair(link)

    def _pair(self, link: Link) -> Pair:
        found = self._pairs.get(link)
        if found is None:
            # Two threads may make the same one; either is as good.
            found = self._pairs[link] = Pair(
                self.source.layout,
                self.source.memories[link.source],
                self.destination.layout,
                self.destination.memories[link.destination],
                link,
            )
        return found
