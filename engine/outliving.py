"""Pages that outlive their request, because a peer is not done with them. Pure.

    kept         wait for a reader, until their lease ends
    lingering    nobody may begin to read them any more, but a reader is in the middle
    stranded     their load failed, and a silent peer may still write into them

Whoever takes pages out of here gives them back to the allocator.
"""

from pdgate.engine.leases import Lease, Leases


class Outliving:
    def __init__(self) -> None:
        self.leases = Leases()
        self._lingering: dict[str, list[int]] = {}
        self._stranded: dict[str, list[int]] = {}

    @property
    def handing_over(self) -> int:
        """Requests that are over and whose pages a peer reads, or is still to read."""
        return len(self.leases) + len(self._lingering)

    def keep(self, lease: Lease) -> None:
        self.leases.hold(lease)

    def linger(self, request_id: str, blocks: list[int]) -> None:
        self._lingering[request_id] = blocks

    def strand(self, request_id: str, blocks: list[int]) -> None:
        self._stranded[request_id] = blocks

    def read(self, request_id: str) -> list[int]:
        """What the reader of this request is done with; nothing if it had nothing."""
        if (blocks := self._lingering.pop(request_id, None)) is not None:
            return blocks
        lease = self.leases.release(request_id)
        return [] if lease is None else lease.blocks

    def settled(self, request_id: str) -> list[int] | None:
        """Stranded pages into which nobody writes any more; None if there were none."""
        return self._stranded.pop(request_id, None)
