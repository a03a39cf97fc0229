"""Pages that outlive their request, because a peer is not done with them. Pure.

kept         wait for a reader, until their lease ends
lingering    no peer may begin to read them any more, but a reader is in the middle
stranded     their load failed, and a silent peer may still write into them
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """
    Attributes:
        until: On the clock of the core, in seconds.
    """

    request_id: str
    blocks: list[int]
    until: float


class Leases:
    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    @property
    def blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases.values())

    @property
    def next_end(self) -> float | None:
        return min((lease.until for lease in self._leases.values()), default=None)

    def __len__(self) -> int:
        return len(self._leases)

    def hold(self, lease: Lease) -> None:
        self._leases[lease.request_id] = lease

    def release(self, request_id: str) -> Lease | None:
        return self._leases.pop(request_id, None)

    def take_ended(self, now: float) -> list[Lease]:
        ended = [lease for lease in self._leases.values() if lease.until <= now]
        for lease in ended:
            del self._leases[lease.request_id]
        return ended

    def take_all(self) -> list[Lease]:
        held = list(self._leases.values())
        self._leases.clear()
        return held


class RetainedPages:
    """Retained pages; what is taken out of here goes back to the allocator."""

    def __init__(self) -> None:
        self.leases = Leases()
        self._lingering: dict[str, list[int]] = {}
        self._undisturbed: set[str] = set()
        """Of those: whose readers may take their time."""
        self._stranded: dict[str, list[int]] = {}

    @property
    def handing_over(self) -> int:
        """Requests that are over and whose pages a peer reads, or is still to read."""
        return len(self.leases) + len(self._lingering)

    def keep(self, lease: Lease) -> None:
        self.leases.hold(lease)

    def linger(self, request_id: str, blocks: list[int]) -> None:
        # What was preempted may be computed anew, and dropped again, before its reader is done.
        self._lingering.setdefault(request_id, []).extend(blocks)
        self._undisturbed.add(request_id)

    def take_undisturbed(self) -> set[str]:
        """Requests whose pages linger, and whose readers are to end now."""
        taken, self._undisturbed = self._undisturbed, set()
        return taken

    def strand(self, request_id: str, blocks: list[int]) -> None:
        self._stranded[request_id] = blocks

    def read(self, request_id: str) -> list[int]:
        """What the reader of this request is done with; nothing if it had nothing."""
        if (blocks := self._lingering.pop(request_id, None)) is not None:
            self._undisturbed.discard(request_id)
            return blocks
        lease = self.leases.release(request_id)
        return [] if lease is None else lease.blocks

    def settled(self, request_id: str) -> list[int] | None:
        """Stranded pages into which no peer writes any more; None if there were none."""
        return self._stranded.pop(request_id, None)
