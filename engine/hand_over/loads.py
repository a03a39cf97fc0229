"""Loads under way on the decode side, a thread each.

    locate -> connect -> (prefill) -> ask -> read -> release: still held? -> loaded

A thread each, because most of a load is waiting: for a prefill that has not finished, or
for a peer that may be dead. Whatever happens, `loaded` is called once, and only when no
byte can land any more.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdgate.engine.connector import Core, Counters
from pdgate.engine.hand_over.errors import HandOverError, Why
from pdgate.engine.hand_over.peer import Peer
from pdgate.engine.hand_over.shape import Shape, differences
from pdgate.engine.hand_over.source import Source, reads
from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Region, TransferError

CLOSE_SECONDS = 10.0
FAREWELL_SECONDS = 2.0

Locate = Callable[[Source, float], tuple[str, int]]
"""The peer's KV service; the float is the time.monotonic() to be done by."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """What every load of an engine needs."""

    core: Core
    backend: Backend
    region: Region
    shape: Shape
    counters: Counters
    lease_seconds: float
    locate: Locate


@dataclass(frozen=True, slots=True)
class Target:
    """Pages to fill: the first `skip` blocks of them are good already."""

    block_ids: Sequence[int]
    tokens: int
    skip: int


class Interrupt:
    """Wakes a thread from whatever it waits for, now or as soon as it starts to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self.fired = False

    def arm(self, wake: Callable[[], None] | None) -> None:
        """Raises HandOverError if it has fired."""
        with self._lock:
            self._wake = wake
            if self.fired:
                raise HandOverError(Why.CANCELLED, "the request was aborted")

    def fire(self) -> None:
        with self._lock:
            self.fired = True
            wake = self._wake
        if wake is not None:
            wake()


class Loads:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, Interrupt] = {}
        self._interrupts: dict[str, Interrupt] = {}
        self._closed = False

    def start(self, request_id: str, source: Source, target: Target) -> None:
        """Raises RuntimeError if there is no room for a thread; then nothing was started."""
        interrupt = Interrupt()
        with self._lock:
            self._interrupts[request_id] = interrupt
        try:
            self._spawn(interrupt, lambda: self._load(request_id, source, target, interrupt))
        except RuntimeError:
            with self._lock:
                del self._interrupts[request_id]
            raise

    def cancel(self, request_id: str) -> None:
        with self._lock:
            interrupt = self._interrupts.get(request_id)
        if interrupt is not None:
            interrupt.fire()

    def farewell(self, source: Source) -> None:
        """Nothing of the source is needed: wait for it, and let it go unread."""
        interrupt = Interrupt()
        self._spawn(interrupt, lambda: self._let_go(source, interrupt))

    def close(self) -> None:
        """Cancels what is left; returns when it has ended."""
        with self._lock:
            self._closed = True
            threads = dict(self._threads)
        for interrupt in threads.values():
            interrupt.fire()
        for thread in threads:
            thread.join(CLOSE_SECONDS)

    def _spawn(self, interrupt: Interrupt, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.pop(threading.current_thread(), None)

        thread = threading.Thread(target=run, name="pdgate-load", daemon=True)
        with self._lock:
            if self._closed:
                interrupt.fire()
            # Under the lock, so that `close` joins only threads that were started.
            thread.start()
            self._threads[thread] = interrupt

    def _load(self, request_id: str, source: Source, target: Target, interrupt: Interrupt) -> None:
        counters = self._reading.counters
        error = None
        try:
            moved = self._fill(source, target, interrupt)
        except (HandOverError, TransferError) as failure:
            error = "cancelled" if interrupt.fired else str(failure)
        # A bug fails this request; without `loaded` its pages would be lost for good.
        except Exception as failure:
            log.exception("load of %s broke", request_id)
            error = f"the load broke: {failure!r}"
        with self._lock:
            self._interrupts.pop(request_id, None)
        if error is None:
            counters.transfers += 1
            counters.bytes_moved += moved
        else:
            counters.failed += 1
            log.info("load of %s failed: %s", request_id, error)
        self._reading.core.loaded(request_id, error)
        if error is not None:
            self._abandon(source)

    def _fill(self, source: Source, target: Target, interrupt: Interrupt) -> int:
        """Bytes read. When it returns or raises, no byte can land any more."""
        reading = self._reading
        until = time.monotonic() + source.wait_seconds + reading.lease_seconds
        interrupt.arm(None)
        with self._connect(source, until) as peer:
            interrupt.arm(peer.interrupt)
            if source.prompt:
                peer.prefill(source.key, source.prompt)
            offer = peer.ask(source.key, source.wait_seconds, reading.shape)
            if wrong := differences(reading.shape, offer.shape):
                raise HandOverError(Why.WRONG_SHAPE, wrong)
            if offer.tokens < target.tokens:
                raise HandOverError(
                    Why.TOO_SHORT, f"{offer.tokens} tokens offered, {target.tokens} needed"
                )
            ranges = reads(
                reading.shape.layout,
                offer.shape.layout,
                target.block_ids,
                offer.block_ids if source.block_ids is None else source.block_ids,
                target.skip,
            )
            try:
                remote = descriptors.from_data(offer.descriptor)
            except ValueError as failure:
                raise HandOverError(Why.BROKEN, str(failure)) from None
            transfer = reading.backend.read(
                reading.region, remote, ranges, max(0.0, until - time.monotonic())
            )
            try:
                interrupt.arm(transfer.cancel)
                transfer.wait(max(0.0, until - time.monotonic()))
            finally:
                transfer.cancel()
                while not transfer.settle(CLOSE_SECONDS):
                    log.warning("%s: bytes may still land; waiting", source.key)
            interrupt.arm(peer.interrupt)
            # Only now is it known that the pages were not used again while we read them.
            if not peer.release(source.key, offer.offer_id):
                raise HandOverError(Why.NOT_HELD, "the peer freed the pages while we read them")
        return sum(one.length for one in ranges)

    def _connect(self, source: Source, until: float) -> Peer:
        host, port = self._reading.locate(source, until)
        return Peer(host, port, source.engine_id, until)

    def _let_go(self, source: Source, interrupt: Interrupt) -> None:
        reading = self._reading
        until = time.monotonic() + source.wait_seconds + reading.lease_seconds
        try:
            with self._connect(source, until) as peer:
                interrupt.arm(peer.interrupt)
                offer = peer.ask(source.key, source.wait_seconds, reading.shape)
                peer.release(source.key, offer.offer_id)
        except HandOverError as error:
            log.info("%s was not let go, so its lease has to end: %s", source.key, error)

    def _abandon(self, source: Source) -> None:
        """Best effort; if it fails, prefill's lease ends it."""
        try:
            until = time.monotonic() + FAREWELL_SECONDS
            with self._connect(source, until) as peer:
                peer.abandon(source.key)
        except HandOverError as error:
            log.info("%s was not abandoned, so its lease has to end: %s", source.key, error)
