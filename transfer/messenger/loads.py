"""Loads under way on the decode side, a thread each.

    locate -> connect -> (prefill) -> pull or push -> loaded
                              '-- elsewhere: the same with each worker of P (each_worker.py)

A thread each, because most of a load is waiting: for a prefill that has not finished, or
for a peer that may be dead. Whatever happens, `loaded` is called once, and only when no
byte can land any more; where that takes longer than the load may, `gave_up` comes before.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pdgate.transfer.base import Backend, Region, TransferError
from pdgate.transfer.device.base import DeviceEvent, wait
from pdgate.transfer.messenger import workers
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.core import MessengerCore
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.each_worker import Adrift, source_at, take_from_each
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.incoming import Immediates, ReceivingMemory
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.messenger.pull import pull
from pdgate.transfer.messenger.receive_push import PushReceiver, receive
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.messenger.source import Moved, Source, Target
from pdgate.transfer.messenger.workers import HeldElsewhere
from pdgate.transfer.runtime.channel import Watch
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import shut

CLOSE_SECONDS = 10.0
FAREWELL_SECONDS = 2.0

NOT_OURS = (Why.UNKNOWN, Why.TAKEN, Why.EXPIRED, Why.WRONG_ENGINE)
"""What the key stands for is not ours to abandon: another's, or the next request's."""

Locate = Callable[[Source, float, Watch], tuple[str, int]]
"""The peer's KV service; the float is the time.monotonic() to be done by. Watched as in `dial`, whoever is asked for it."""

Deliver = Callable[[str, Context], None]
"""Request id, and what came beside its pages; right before `loaded`, if all went well."""

log = logging.getLogger(__name__)


def ignore(request_id: str, context: Context) -> None:
    """For engines that go on from the last prompt token."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What every load of an engine needs.

    Attributes:
        inbox: Where contexts of pushes land; without it none may be asked for.
        ranks: Which of the engine's ranks the regions are, in this order; empty for all.
    """

    core: MessengerCore
    backend: Backend
    regions: Sequence[Region]
    shape: PageShape
    counters: MessengerCounters
    lease_seconds: float
    locate: Locate
    patience: Patience
    inbox: Slots | None = None
    identity: Identity = field(default_factory=Identity)
    deliver: Deliver = ignore
    ranks: Ranks = ALL


class Loads:
    """
    Attributes:
        fellows: Names of the processes of our engine's other workers.
    """

    def __init__(self, reading: LoadContext) -> None:
        self._reading = reading
        self.fellows: Sequence[str] = ()
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, Interrupt] = {}
        self._interrupts: dict[str, Interrupt] = {}
        self._closed = False
        memory = ReceivingMemory(
            reading.backend,
            reading.regions,
            reading.shape,
            reading.ranks,
            Immediates(),
            reading.inbox,
        )
        self._receiver = PushReceiver(
            memory, reading.patience, lambda: self._closed, lambda: self.fellows
        )

    def start(
        self, request_id: str, source: Source, target: Target, after: DeviceEvent | None = None
    ) -> None:
        """Nothing is asked of the peer until `after` has happened, the last that the device does
        with the pages. Raises RuntimeError if there is no room for a thread; then nothing was started.
        """
        interrupt = Interrupt()
        with self._lock:
            self._interrupts[request_id] = interrupt
        try:
            self._spawn(interrupt, lambda: self._load(request_id, source, target, interrupt, after))
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
        """Nothing of the source is needed: wait for it, and let it go unread.

        Of several workers the first says so, for all of them.
        """
        if workers.is_first(self._reading.ranks):
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

    def _load(
        self,
        request_id: str,
        source: Source,
        target: Target,
        interrupt: Interrupt,
        after: DeviceEvent | None,
    ) -> None:
        counters, pages = self._reading.counters, len(target.block_ids) - target.skip
        started = time.monotonic()
        stranded = False

        def adrift(failure: HandOverError) -> None:
            nonlocal stranded
            stranded = True
            counters.add(stranded=pages)
            log.warning("load of %s failed, and its peer is silent: %s", request_id, failure)
            self._reading.core.gave_up(request_id, str(failure))

        error = None
        asked = [source]
        try:
            moved = self._fill(source, target, interrupt, adrift, asked, after)
            self._reading.deliver(request_id, moved.context)
        except (HandOverError, TransferError) as failure:
            error = "cancelled" if interrupt.fired else str(failure)
            _leave_alone(source, failure, asked)
        # A bug fails this request; without `loaded` its pages would be lost for good.
        except Exception as failure:
            log.exception("load of %s broke", request_id)
            error = f"the load broke: {failure!r}"
        if stranded:
            counters.add(stranded=-pages)
        with self._lock:
            self._interrupts.pop(request_id, None)
        seconds = time.monotonic() - started
        if error is None:
            counters.add(transfers=1, bytes_moved=moved.bytes, seconds=seconds)
        else:
            counters.add(failed=1, seconds=seconds)
            log.info("load of %s failed: %s", request_id, error)
        self._reading.core.loaded(request_id, error)
        if error is not None:
            for one in asked:
                self._abandon(one)

    def _fill(
        self,
        source: Source,
        target: Target,
        interrupt: Interrupt,
        adrift: Adrift,
        asked: list[Source],
        after: DeviceEvent | None,
    ) -> Moved:
        """What came. When it returns or raises, no byte can land any more, and `asked` says which
        workers may still keep something for us.
        """
        reading = self._reading
        until = time.monotonic() + source.wait_seconds + reading.lease_seconds
        if after is not None and not wait(after, until, lambda: interrupt.fired):
            interrupt.arm(None)
            raise HandOverError(Why.TOO_LATE, "the device still works on the pages")
        if not workers.is_first(reading.ranks):
            # Our first worker has it computed.
            source = replace(source, prompt=(), lent=None)

        def take(source: Source, its: Interrupt, adrift: Adrift) -> Moved:
            try:
                return self._take(source, target, until, its, adrift)
            except HandOverError as error:
                _leave_alone(source, error, asked)
                raise

        interrupt.arm(None)
        try:
            return take(source, interrupt, adrift)
        except HeldElsewhere as said:
            referred = said
        interrupt.arm(None)
        parts, idle = workers.to_ask(referred, reading.shape, reading.ranks, source.key)
        # A context is the engine's, whatever ranks it has.
        sources = [
            replace(source_at(part, source, referred), context=source.context and not place)
            for place, part in enumerate(parts)
        ]
        asked[:] = sources
        if workers.is_first(reading.ranks):
            asked += [source_at(part, source, referred) for part in idle]
            for part in idle:
                self.farewell(source_at(part, source, referred))
        return take_from_each(sources, take, interrupt, adrift)

    def _take(
        self, source: Source, target: Target, until: float, interrupt: Interrupt, adrift: Adrift
    ) -> Moved:
        """A conversation with one worker. Raises HeldElsewhere if others hold a part of it."""
        reading = self._reading
        interrupt.arm(None)
        with self._connect(source, until, interrupt) as peer:
            interrupt.arm(peer.interrupt)
            if source.push:
                return receive(self._receiver, peer, source, target, until, interrupt, adrift)
            if source.prompt:
                peer.prefill(source.key, source.prompt, source.lent, self.fellows)
            memory = (reading.backend, reading.regions, reading.ranks)
            return pull(peer, source, target, reading.shape, memory, until, interrupt)

    def _connect(self, source: Source, until: float, interrupt: Interrupt) -> Peer:
        reading = self._reading

        def watch(sock: socket.socket) -> None:
            interrupt.arm(lambda: shut(sock))

        return Peer(
            (source.host, source.port) if source.ranks else reading.locate(source, until, watch),
            source.engine_id,
            until,
            reading.identity,
            name=source.peer,
            watch=watch,
        )

    def _let_go(self, source: Source, interrupt: Interrupt) -> None:
        reading = self._reading
        until = time.monotonic() + source.wait_seconds + reading.lease_seconds
        try:
            with self._connect(source, until, interrupt) as peer:
                interrupt.arm(peer.interrupt)
                offer = peer.ask(
                    source.key,
                    source.wait_seconds,
                    reading.lease_seconds,
                    reading.shape,
                    only_here=bool(source.ranks),
                )
                peer.release(source.key, offer.offer_id)
        except HeldElsewhere as said:
            for worker in [] if source.ranks else said.workers:
                self.farewell(source_at(worker, source, said))
        except HandOverError as error:
            log.info("%s was not let go, so its lease has to end: %s", source.key, error)

    def _abandon(self, source: Source) -> None:
        """Best effort; if it fails, prefill's lease ends it."""
        try:
            until = time.monotonic() + FAREWELL_SECONDS
            with self._connect(source, until, Interrupt()) as peer:
                peer.abandon(source.key)
        except HandOverError as error:
            log.info("%s was not abandoned, so its lease has to end: %s", source.key, error)


def _leave_alone(source: Source, failure: Exception, asked: list[Source]) -> None:
    """What this worker has under the key may be the next request's by now."""
    if isinstance(failure, HandOverError) and failure.why in NOT_OURS and source in asked:
        asked.remove(source)
