"""All communicators between one P and one D, and what of a request goes over which.

Both ends post the same lists in the same order, layer by layer. So P may begin with the first
layers while it computes the last ones (a gate for each), and D need not know whether it does.

    slices.py        into D's pages, at once
    whole_pages.py   into D's staging, if D has one and the two split the heads differently
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pdgate.engine.neuron.communicator import RING_BYTES, Receiver, Sender
from pdgate.engine.neuron.ground import Ground
from pdgate.engine.neuron.kv_map import KvMap
from pdgate.engine.neuron.lists import Lists
from pdgate.engine.neuron.posts import CompletionToken, PostGate
from pdgate.engine.neuron.slices import Slices
from pdgate.engine.neuron.whole_pages import KEY, WholePages, offered
from pdgate.transfer.base import Region, TransferError
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.parts import Pieces

IMMEDIATES: Final = 128
"""That D sets aside for a P: one for each of its ranks."""


def ring_bytes(prefill: PageShape, decode: PageShape) -> int:
    return prefill.tp * decode.tp * RING_BYTES


class SendEngine:
    """P's end of a pairing.

    Args:
        ring: Ours, `ring_bytes` long.

    Attributes:
        whole_pages: Whether pages travel whole, which D is to be told.
    """

    def __init__(
        self,
        ground: Ground,
        ours: PageShape,
        regions: Sequence[Region],
        theirs: KvMap,
        ring: Region,
    ) -> None:
        """Raises HandOverError."""
        staging = offered(ours, theirs)
        self.whole_pages = staging is not None
        self._lists: Lists
        if staging is None:
            lengths = [region.descriptor.length for region in regions]
            memory = theirs.memory
            there = [one.length for one in memory]
            self._lists = Slices(ours, theirs.shape, lengths, there)
        else:
            memory = [staging]
            self._lists = WholePages(ours, theirs.shape)
        self._ring = ring
        first = theirs.immediate()
        self._ends = {
            (p, d): Sender(
                ground,
                regions[p],
                memory[d],
                first + p,
                ring,
                number * RING_BYTES,
                number,
            )
            for number, (p, d) in enumerate(self._lists.ends)
        }

    @property
    def ends(self) -> Collection[Sender]:
        return self._ends.values()

    def send(
        self,
        uid: str,
        blocks: Sequence[int],
        to: Sequence[int | None],
        gates: Sequence[PostGate],
        token: CompletionToken,
    ) -> None:
        """`blocks` are ours, `to` are D's; a gate per layer. Raises BadBlocks, nothing posted."""
        for one in self._lists.sent(uid, blocks, to):
            self._ends[one.ends].post(one.pieces, token, gates[one.layer])

    def pump(self) -> None:
        for end in self._ends.values():
            end.pump()

    def end(self, error: TransferError) -> None:
        for sender in self._ends.values():
            sender.end(error)

    @property
    def error(self) -> TransferError | None:
        return next((end.error for end in self._ends.values() if end.error is not None), None)

    @property
    def settled(self) -> bool:
        return all(end.settled for end in self._ends.values())

    def close(self) -> None:
        """Close after it has ended."""
        self._ring.close()


class ReceiveEngine:
    """D's end of a pairing.

    Args:
        immediate: The first of IMMEDIATES that no other uses.
        allocate: Makes memory of the backend's.
        awaited: Where P may write, by the epoch of each region, which each post names.
        arrivals: Where whole pages may arrive, if we have such a place.
    """

    def __init__(
        self,
        ground: Ground,
        ours: PageShape,
        regions: Sequence[Region],
        theirs: KvMap,
        immediate: int,
        allocate: Callable[[int], Region],
        landing_seconds: float,
        awaited: Mapping[str, Pieces],
        arrivals: Region | None = None,
    ) -> None:
        """Raises HandOverError, TransferError, OSError."""
        self._regions = regions
        self._arrivals = arrivals
        self._whole = None
        self._lists: Lists
        local = list(regions)
        if arrivals is not None and theirs.extra.get(KEY) is True:
            local = [arrivals]
            self._lists = self._whole = WholePages(theirs.shape, ours)
        else:
            lengths = [region.descriptor.length for region in regions]
            there = [one.length for one in theirs.memory]
            self._lists = Slices(theirs.shape, ours, there, lengths)
        ring = theirs.ring()
        self._staging = allocate(ring_bytes(theirs.shape, ours))
        self._ends = {
            (p, d): Receiver(
                ground,
                local[d],
                immediate + p,
                awaited[local[d].descriptor.epoch],
                self._staging,
                ring,
                number * RING_BYTES,
                number,
                landing_seconds,
            )
            for number, (p, d) in enumerate(self._lists.ends)
        }

    def receive(
        self,
        uid: str,
        blocks: Sequence[int | None],
        of: Sequence[int],
        token: CompletionToken,
    ) -> None:
        """`blocks` are ours, `of` are P's. Raises BadBlocks, nothing posted."""
        for one in self._lists.received(uid, of, blocks):
            self._ends[one.ends].post(one.pieces, token)

    def put_in_order(self, blocks: Sequence[int | None]) -> None:
        """All of a `receive` has landed, and is to be found in the pages from now on."""
        if self._whole is not None and self._arrivals is not None:
            self._whole.put_in_order(self._arrivals, self._regions, blocks)

    def pump(self) -> None:
        for end in self._ends.values():
            end.pump()

    def end(self, error: TransferError) -> None:
        for receiver in self._ends.values():
            receiver.end(error)

    def close(self) -> None:
        """Close after it has ended."""
        self._staging.close()
