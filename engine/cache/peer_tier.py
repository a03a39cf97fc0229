"""Tiers of other hosts, as the engine sees them that asks: blocks come before a request begins, or it is computed.

    core thread       fetch(names) ... goes on with other requests ... take(name): into pages
    fetching thread         asks one peer after another, checks each block, keeps it
    timer             FETCH_SECONDS after `fetch`: the request goes on with what has come, whatever a peer does

What is said is in tier_window.py. A block counts only if it fits the digest that a proven member of the fleet gave for it. A peer
that fails is left alone for a while, so that a dead one costs one request's patience and not each one's.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import Final

from pdgate.cluster import address
from pdgate.engine.cache import tier_window as window
from pdgate.engine.cache.tier_counts import Counts
from pdgate.engine.cache.tier_spec import PEER, PeerSpec
from pdgate.transfer.base import Backend, Range, Transfer, TransferError
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.runtime.fleet import CURE, Identity, loopback
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.sockets import hung_up

FETCH_SECONDS: Final = 2.0
"""After these a request is computed; what it waits for is to be quicker than that."""
QUIET_SECONDS: Final = 10.0
"""For which a peer that failed is not asked."""
WINDOW_BYTES: Final = 8 << 20
"""That are asked for at once."""
MOST_WAITING: Final = 64
"""Requests that wait for blocks; beyond these none does."""
SETTLE_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


class _Fetch:
    """What a request waits for; `end` tells it once that it need not."""

    def __init__(self, names: Sequence[str], then: Callable[[], object]) -> None:
        self.names = names
        self.until = time.monotonic() + FETCH_SECONDS
        self.interrupt = Interrupt()
        self._then = then
        self._lock = threading.Lock()
        self._over = False
        self._timer = threading.Timer(FETCH_SECONDS, self._late)
        self._timer.daemon = True
        self._timer.start()

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def end(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._timer.cancel()
        self._then()

    def _late(self) -> None:
        self.end()
        self.interrupt.fire()


class PeerTier:
    """
    Attributes:
        medium: As /metrics says it.
    """

    medium: Final = PEER

    def __init__(
        self, specs: Sequence[PeerSpec], block_bytes: int, backend: Backend, identity: Identity
    ) -> None:
        """Raises ValueError for a peer that may not be asked without a secret; OSError, TransferError."""
        for spec in specs:
            if identity.is_open and not loopback(spec.host):
                raise ValueError(f"the KV tier of {spec.host} is asked with a KV secret: {CURE}")
        self.counts = Counts()
        self._most = sum(spec.most_bytes for spec in specs) // block_bytes
        self._came: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._orders: Queue[_Fetch | None] = Queue(MOST_WAITING)
        self._peers = [_TierPeer(spec, block_bytes, backend, identity) for spec in specs]

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Peers are asked until the end of this."""
        thread = threading.Thread(target=self._run, name="pdgate-kv-peers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with suppress(Full):
                self._orders.put(None, timeout=CLOSE_SECONDS)
            thread.join(CLOSE_SECONDS)
            for peer in self._peers:
                peer.close()

    def has(self, name: str) -> bool:
        with self._lock:
            return name in self._came

    def take(self, name: str) -> bytes | None:
        """A block that came, once: from now on it is in pages."""
        with self._lock:
            pages = self._came.pop(name, None)
        self.counts.hits += pages is not None
        return pages

    def fetch(self, names: Sequence[str], then: Callable[[], object]) -> bool:
        """`then` is called when what comes of them has come, on any thread; False if none is going to."""
        now = time.monotonic()
        if not names or self._most < 1 or not any(peer.willing(now) for peer in self._peers):
            return False
        if self._orders.full():
            return False
        # Asked for by the core's thread alone, so there is still room.
        self._orders.put_nowait(_Fetch(names[: self._most], then))
        return True

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._bring(order)
            except Exception:  # the last stop of a thread: the request is computed
                log.exception("KV could not be fetched from another host")
            order.end()

    def _bring(self, order: _Fetch) -> None:
        for peer in self._peers:
            names = [name for name in order.names if not self.has(name)]
            if not names or order.left <= 0:
                return
            if not peer.willing(time.monotonic()):
                continue
            try:
                for name, pages in peer.blocks(names, order):
                    self._keep(name, pages)
            except (HandOverError, TransferError, OSError) as error:
                self.counts.lost += 1
                self.counts.broken += isinstance(error, _NoBlock)
                peer.failed(error)

    def _keep(self, name: str, pages: bytes) -> None:
        with self._lock:
            self._came[name] = pages
            self._came.move_to_end(name)
            while len(self._came) > self._most:
                self._came.popitem(last=False)


class _NoBlock(TransferError):
    """What came is not what was offered."""


class _TierPeer:
    """The tiers of one engine, over one connection, by the fetching thread."""

    def __init__(
        self, spec: PeerSpec, block_bytes: int, backend: Backend, identity: Identity
    ) -> None:
        """Raises OSError, TransferError, ValueError."""
        self._address = (spec.host, spec.port)
        self._identity = identity
        self._backend = backend
        slots = max(1, WINDOW_BYTES // block_bytes)
        self._shape = window.shape(block_bytes, slots)
        self._region = backend.allocate(slots * block_bytes)
        self._line: Peer | None = None
        self._quiet_until = 0.0
        self._said = False

    def willing(self, now: float) -> bool:
        """Whether it has not failed lately."""
        return now >= self._quiet_until

    def failed(self, error: Exception) -> None:
        self._hang_up()
        self._quiet_until = time.monotonic() + QUIET_SECONDS
        # Once, and not for each request.
        if not self._said:
            self._said = True
            where = address.joined(*self._address)
            log.warning(
                "the KV tier of %s gives nothing, so prompts are computed: %s", where, error
            )

    def close(self) -> None:
        self._hang_up()
        self._region.close()

    def blocks(self, names: Sequence[str], order: _Fetch) -> Iterator[tuple[str, bytes]]:
        """The first of them that it has. Raises HandOverError, TransferError, OSError."""
        done = 0
        while done < len(names):
            found = self._some(names[done : done + self._shape.blocks], order)
            self._said = False
            yield from zip(names[done:], found, strict=False)
            done += len(found)
            if not found:
                return

    def _some(self, names: Sequence[str], order: _Fetch) -> list[bytes]:
        peer, key = self._connected(order), window.key_of(names)
        order.interrupt.arm(peer.interrupt)
        try:
            offer = peer.ask(key, max(0.0, order.left / 2), max(0.0, order.left), self._shape)
        except HandOverError as error:
            if error.why in (Why.UNKNOWN, Why.FULL):
                return []
            raise
        self._check(offer, len(names))
        found = self._read(offer, order)
        order.interrupt.arm(peer.interrupt)
        if not peer.release(key, offer.offer_id, len(found) * self._shape.page_bytes):
            raise HandOverError(Why.NOT_HELD, "the peer used the window again while it was read")
        return found

    def _check(self, offer: messages.Offered, asked: int) -> None:
        """Raises HandOverError."""
        window.check(self._shape, offer.shape)
        count = offer.tokens
        if not (0 < count <= asked and count == len(offer.block_ids)):
            raise HandOverError(Why.BROKEN, f"{count} blocks offered of {asked}")
        if len(offer.context) != count * window.DIGEST_BYTES:
            raise HandOverError(Why.BROKEN, "not a digest for each block")
        offer.shape.check(offer.block_ids)

    def _read(self, offer: messages.Offered, order: _Fetch) -> list[bytes]:
        size = self._shape.page_bytes
        remote = shards.remotes(offer.descriptors, offer.shape, self._backend.name)[0]
        ranges = [Range(n * size, slot * size, size) for n, slot in enumerate(offer.block_ids)]
        transfer = self._backend.read(self._region, remote, ranges, max(0.0, order.left))
        try:
            order.interrupt.arm(transfer.cancel)
            transfer.wait(max(0.0, order.left))
        finally:
            self._settle(transfer)
        found = [bytes(self._region.memory[n * size : (n + 1) * size]) for n in range(offer.tokens)]
        for n, pages in enumerate(found):
            wanted = offer.context[n * window.DIGEST_BYTES : (n + 1) * window.DIGEST_BYTES]
            if window.digest(pages) != wanted:
                raise _NoBlock("a block came otherwise than its digest says")
        return found

    def _settle(self, transfer: Transfer) -> None:
        transfer.cancel()
        if not transfer.settle(SETTLE_SECONDS):
            # Bytes may still land there, so the next ones have another place.
            self._region = self._backend.allocate(self._shape.blocks * self._shape.page_bytes)

    def _connected(self, order: _Fetch) -> Peer:
        """Raises HandOverError."""
        if self._line is not None and hung_up(self._line.channel.wire):
            self._hang_up()
        if self._line is None:
            self._line = Peer(
                self._address,
                "",
                order.until,
                self._identity,
                purpose=window.PURPOSE,
                watch=lambda sock: order.interrupt.arm(lambda: shut(sock)),
            )
        return self._line

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.channel.close()
            self._line = None
