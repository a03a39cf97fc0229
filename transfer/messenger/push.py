"""One push on P's side: both halves of it, and what is written of it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pdgate.transfer.base import TransferError
from pdgate.transfer.messenger.asked import Asked
from pdgate.transfer.messenger.context import NOTHING, Context
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.line import MessengerLine
from pdgate.transfer.messenger.mover import Mover
from pdgate.transfer.messenger.outbox import ContextOutbox
from pdgate.transfer.messenger.sending import Sending
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.sharded import Sharded
from pdgate.transfer.messenger.tiles import Tile


@dataclass(eq=False, slots=True)
class PushRequest:
    """P's own side of a key.

    Attributes:
        tokens: Computed so far, by layer.
        kept: All is computed, and the core waits for `release`: once more, if it was computed anew while others linger.
        pending: It is kept, and how many of its tokens are there is not said yet: the device has not come so far.
        lost: Why the device will never come so far.
        dropped: The core wants its pages back.
        lingering: Pages that were read from then, for which it waits for `release` all the same; None if it does not.
        done: It was handed over before it was kept.
        taken: Ranks of decode that have theirs.
        error: What a push of it ended with; the others end with it.
    """

    id: str
    key: str
    tokens: list[int]
    block_ids: Sequence[int] = ()
    context: Context = NOTHING
    kept: bool = False
    pending: bool = False
    lost: HandOverError | None = None
    dropped: bool = False
    lingering: int | None = None
    done: bool = False
    taken: frozenset[int] = frozenset()
    error: HandOverError | None = None


class OutgoingPush:
    """What one D has asked for, or one of its workers. It never waits.

    Attributes:
        lock: The table's, which guards `sending` and `request` here too.
        request: What is pushed, once both sides have met.
        met_at: When that was, on time.monotonic().
        over: Nothing of it moves any more, and D was told.
    """

    def __init__(
        self,
        asked: Asked,
        line: MessengerLine,
        lock: threading.Lock,
        ended: Callable[["OutgoingPush"], None],
    ) -> None:
        """`ended` is called without the lock after each write."""
        self.asked = asked
        self.line = line
        self.sending = Sending(asked.tiles, with_context=asked.slot is not None)
        self.request: PushRequest | None = None
        self.met_at = 0.0
        self.over = threading.Event()
        self._lock = lock
        self._ended = ended
        self._way: Sharded | None = None
        self._cancelled = False
        self._cancel_context: Callable[[], None] | None = None

    @property
    def began(self) -> bool:
        return self._way is not None

    def way(self, movers: Mapping[int, Mover], shape: PageShape) -> Sharded:
        """To D's memory, for `begin`. Raises OSError, TransferError, HandOverError."""
        return Sharded(movers, self.line.fileno(), shape, self.asked)

    def begin(self, way: Sharded) -> None:
        self._way = way

    def due(self, request: PushRequest) -> list[Tile]:
        """What can be written now, of all layers. With the lock."""
        due: list[Tile] = []
        for layer, tokens in enumerate(request.tokens):
            due += self.sending.computed(layer, tokens)
        return due

    def write(self, due: Sequence[Tile], block_ids: Sequence[int]) -> None:
        """Without the lock: it may be over before this returns."""
        if not due:
            return
        assert self._way is not None
        for tile in due:
            self._way.write(tile, block_ids, self._landed)

    def write_context(self, outbox: ContextOutbox, context: Context) -> None:
        """Like `write`."""
        slot, asked = self.asked.slot, self.asked
        assert slot is not None
        cancel = outbox.send(
            context, slot.remote, slot.offset, asked.until, asked.immediate, self._landed
        )
        with self._lock:
            self._cancel_context = cancel
            cancelled = self._cancelled
        if cancelled:
            cancel()

    def cancel(self) -> None:
        """Gives up what is being written, when it was stopped. Without the lock."""
        with self._lock:
            self._cancelled = True
            way, cancel_context = self._way, self._cancel_context
        if way is not None:
            way.cancel()
        if cancel_context is not None:
            cancel_context()

    def close(self) -> None:
        """When it is over."""
        if self._way is not None:
            self._way.close()

    def _landed(self, error: TransferError | None) -> None:
        with self._lock:
            if error is None:
                self.sending.landed()
            else:
                self.sending.failed(HandOverError(Why.BROKEN, f"a write failed: {error}"))
        self._ended(self)
