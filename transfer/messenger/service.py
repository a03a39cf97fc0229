"""P's port: answers D from the tables of offers and pushes, a thread per connection."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdgate.transfer import descriptors
from pdgate.transfer.base import Grant, Op, Region, TransferError
from pdgate.transfer.device.base import wait
from pdgate.transfer.messenger import asked, messages, shards, workers
from pdgate.transfer.messenger.core import MessengerCore
from pdgate.transfer.messenger.counters import MessengerCounters, Readings
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.line import MessengerLine
from pdgate.transfer.messenger.offers import MAX_KEY_CHARACTERS, Offer, Offers, too_long
from pdgate.transfer.messenger.push import OutgoingPush
from pdgate.transfer.messenger.push_table import PushTable
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks
from pdgate.transfer.messenger.workers import MessengerWorker
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import VERSION, Unproven
from pdgate.transfer.runtime.listener import Listener

MAX_WAIT_SECONDS = 3600.0
MAX_READERS = 1024
MAX_NAME_CHARACTERS = 64
READ_MARGIN_SECONDS = 5.0
"""How much longer than a reader said its pages stay: it must have given up before."""
SILENCE_SECONDS = 10.0
"""A peer that waits for a push says something more often than that."""

log = logging.getLogger(__name__)

Submit = Callable[[str, Sequence[int], messages.Lent | None, Sequence[str]], None]
"""Starts a prefill under a key, for the processes of these names; the first of them asks, and
may lend some of the prompt.

Raises HandOverError.
"""


@dataclass(frozen=True, slots=True)
class Offering:
    """What a service offers from, and who it is.

    Attributes:
        ranks: Which of the engine's ranks the regions are, in this order; empty for all.
    """

    core: MessengerCore
    offers: Offers
    pushes: PushTable
    regions: Sequence[Region]
    shape: PageShape
    engine_id: str
    counters: MessengerCounters = field(default_factory=MessengerCounters)
    ranks: Ranks = ALL


class MessengerService:
    """
    Attributes:
        workers: Of the engine, this one included, where there are several.
    """

    def __init__(
        self,
        host: str,
        port: int,
        offering: Offering,
        submit: Submit,
        identity: Identity | None = None,
    ) -> None:
        """Listens from now on. Raises OSError if the address is taken, ValueError if listening
        there takes a secret.
        """
        identity = identity or Identity()
        sock = fleet.listening("KV hand-over", host, port, identity)
        self.port: int = sock.getsockname()[1]
        self.workers: Sequence[MessengerWorker] = ()
        self._offering = offering
        self._submit = submit
        door = Door("hand-over", identity, {messages.PURPOSE: self.serve}, older)
        self._listener = Listener("pdgate-kv", sock, door)

    def close(self) -> None:
        """PushTable first: their connections may end only when nothing is written any more."""
        self._offering.offers.close()
        self._offering.pushes.close()
        self._listener.close()

    def serve(self, channel: Channel) -> None:
        """A proven connection, also one that another port has accepted. Raises OSError."""
        _Conversation(MessengerLine(channel), self._offering, self._submit, self.workers).run()


def older(head: bytes) -> bytes:
    """To a peer from before the handshake, whose messages begin with a length."""
    if int.from_bytes(head[:4], "big") > messages.MAX_BYTES:
        return b""
    why = f"this engine speaks version {VERSION} of the KV handshake, and you speak none"
    return messages.plain(messages.RefusedMessage(Why.UNSUPPORTED, why))


class _Conversation:
    """One connection."""

    def __init__(
        self,
        line: MessengerLine,
        offering: Offering,
        submit: Submit,
        workers: Sequence[MessengerWorker],
    ) -> None:
        self._line = line
        self._offering = offering
        self._workers = workers
        self._submit = submit
        self._push: OutgoingPush | None = None
        self._silence: float | None = None
        self._ends: dict[str, float] = {}
        """When the time is over to read an offer, on time.monotonic()."""
        self._readings = Readings(offering.counters)
        self._grants: dict[str, list[Grant]] = {}
        """Of regions, by the offer that they are for. Who forgets the offer takes them, on another thread."""

    def run(self) -> None:
        """Returns when nothing that was asked for here moves any more. Raises OSError."""
        gone = HandOverError(Why.BROKEN, "the decode engine hung up")
        try:
            while (message := self._line.receive(self._patience())) is not None:
                answer = self._answer(message)
                if answer is not None:
                    self._send(answer)
        except messages.BadMessage as error:
            log.warning("a peer on the KV port spoke something else: %s", error)
            gone = HandOverError(Why.BROKEN, f"the decode engine spoke something else: {error}")
        except TimeoutError:
            gone = HandOverError(Why.SILENT, "the decode engine says nothing any more")
        except Unproven as error:
            log.warning("a peer on the KV port: %s", error)
            gone = HandOverError(Why.BROKEN, f"the decode engine: {error}")
        finally:
            self._readings.close()
            for offer_id in list(self._grants):
                self._revoke(offer_id)
            for request_id in self._offering.offers.left(self):
                self._free(request_id)
            if self._push is not None:
                self._offering.pushes.leave(self._push, gone)

    def _patience(self) -> float | None:
        """For the next word, whatever it is: talking keeps no pages."""
        return None if self._silence is None else max(0.0, min(self._silence, self._left()))

    def _left(self) -> float:
        """Seconds to the next end of a reading."""
        return min(self._ends.values(), default=math.inf) - time.monotonic()

    def _send(self, answer: messages.Message) -> None:
        """An offer may be large, so it may take its time; a push's answers come in between
        the model's layers.
        """
        if self._push is None:
            self._line.answer(answer)
        else:
            self._line.say(answer)

    def _answer(self, message: messages.Message) -> messages.Message | None:
        try:
            match message:
                # Keys are remembered for longer than a connection lasts.
                case (
                    messages.Ask(key=key)
                    | messages.Abandon(key=key)
                    | messages.Prefill(key=key)
                    | messages.Push(key=key)
                ) if len(key) > MAX_KEY_CHARACTERS:
                    raise HandOverError(Why.UNSUPPORTED, too_long(key))
                case messages.Prefill(readers=readers) if len(readers) > MAX_READERS or any(
                    len(name) > MAX_NAME_CHARACTERS for name in readers
                ):
                    raise HandOverError(Why.UNSUPPORTED, "more or longer names than engines have")
                case messages.Ask():
                    return self._offer(message)
                case messages.Release():
                    return messages.Released(self._release(message))
                case messages.Abandon(key, engine_id):
                    self._meant(engine_id)
                    return messages.Released(self._abandon(key))
                case messages.Prefill(key, prompt, lent, readers):
                    self._submit(key, prompt, lent, (self._line.peer, *readers))
                    return messages.Accepted()
                case messages.Push():
                    return self._start(message)
                case messages.Cancel() if self._push is not None:
                    why = HandOverError(Why.CANCELLED, "the decode engine gave up")
                    self._offering.pushes.leave(self._push, why)
                    return messages.Stopped()
                case messages.Ping():
                    return messages.Pong()
                case _:
                    raise messages.BadMessage(f"{type(message).__name__} means nothing here")
        except HandOverError as error:
            return messages.RefusedMessage(error.why, error.message)

    def _meant(self, engine_id: str) -> None:
        """A restarted engine may use the same keys for other requests."""
        if engine_id not in ("", self._offering.engine_id):
            raise HandOverError(Why.WRONG_ENGINE, "that was another life of this engine")

    def _offer(self, ask: messages.Ask) -> messages.Offered | messages.Elsewhere:
        self._meant(ask.engine_id)
        ours, held = self._offering.shape, self._offering.ranks
        # Before the wait: pages that do not fit are not worth waiting for.
        shards.meet(ours, ask.shape)
        share = workers.share(ours, held, ask.shape, ask.ranks, ask.key, only_here=ask.only_here)
        if share is None:
            return self._elsewhere()
        if not (math.isfinite(ask.wait_seconds) and math.isfinite(ask.read_seconds)):
            raise messages.BadMessage("a wait without end")
        if self._push is not None:
            raise messages.BadMessage("a reading beside a push")
        peer = self._line.peer
        # What is read already waits for none.
        wait_seconds = _within(min(ask.wait_seconds, self._left()))
        try:
            offer = self._offering.offers.wait(
                ask.key, wait_seconds, self, peer, self._line.gone, share
            )
        except HandOverError as error:
            # It comes no more, so whatever arrives under the key is for no peer.
            if error.why in (Why.BROKEN, Why.UNKNOWN) and ask.wait_seconds > 0:
                self._abandon(ask.key)
            raise
        self._silence = _within(ask.read_seconds) + READ_MARGIN_SECONDS
        # Who asks again for what it reads has no more time.
        self._ends.setdefault(offer.id, time.monotonic() + self._silence)
        self._await(offer, min(_within(ask.read_seconds), self._left()))
        held_tokens = ours.blocks_for(offer.tokens) * ours.block_tokens
        self._readings.began(offer.id, ask.shape.bytes_of(held_tokens))
        return messages.Offered(
            offer.id,
            [descriptors.as_data(one.descriptor) for one in self._granted(ask.key, offer)],
            ours,
            list(offer.block_ids),
            offer.tokens,
            offer.context.first_token,
            offer.context.data,
            held,
        )

    def _await(self, offer: Offer, seconds: float) -> None:
        """Until what is offered is in its pages. Raises HandOverError."""
        if offer.after is None:
            return
        try:
            if wait(offer.after, time.monotonic() + seconds, self._line.gone):
                return
        except TransferError as error:
            raise HandOverError(Why.BROKEN, f"prefill's pages are lost: {error}") from None
        raise HandOverError(Why.TOO_LATE, "the device has not come so far in time")

    def _elsewhere(self) -> messages.Elsewhere:
        offering = self._offering
        if not self._workers:
            raise HandOverError(Why.CLOSING, "the prefill engine is still starting")
        return messages.Elsewhere(offering.engine_id, offering.shape, tuple(self._workers))

    def _granted(self, key: str, offer: Offer) -> list[Grant]:
        """Who asked may read these pages, here and nowhere else, until the offer is released or
        forgotten. Raises HandOverError.
        """
        ours, found = self._offering.shape, self._grants.get(offer.id)
        if found is None:
            pages, seconds = ours.part(offer.block_ids), self._ends[offer.id] - time.monotonic()
            found = [
                region.grant(self._line.peer, Op.READ, pages, seconds)
                for region in self._offering.regions
            ]
            self._grants[offer.id] = found
            offers = self._offering.offers
            if not offers.granted(key, offer.id, self, lambda: self._revoke(offer.id)):
                self._revoke(offer.id)
                raise HandOverError(Why.EXPIRED, "its pages may not be read any more")
        return found

    def _revoke(self, offer_id: str) -> None:
        for grant in self._grants.pop(offer_id, ()):
            grant.revoke()

    def _start(self, push: messages.Push) -> messages.Elsewhere | None:
        self._meant(push.engine_id)
        if self._push is not None:
            raise messages.BadMessage("a second push on one connection")
        if self._ends:
            raise messages.BadMessage("a push beside a reading")
        offering = self._offering
        backend, pushes = offering.regions[0].descriptor.backend, offering.pushes
        wanted = asked.check(push, offering.shape, backend, pushes.context_bytes, offering.ranks)
        if wanted is None:
            return self._elsewhere()
        self._push = pushes.ask(self._line, wanted)
        self._silence = SILENCE_SECONDS
        return None

    def _release(self, said: messages.Release) -> bool:
        self._revoke(said.offer_id)
        self._ends.pop(said.offer_id, None)
        done = self._offering.offers.release(said.key, said.offer_id, self)
        self._readings.ended(
            said.offer_id, held=done.held, bytes_read=said.bytes_read, last=done.free is not None
        )
        if done.free is not None:
            self._free(done.free)
        return done.held

    def _abandon(self, key: str) -> bool:
        found = self._offering.offers.abandon(key, self._line.peer)
        if found is None:
            return False
        request_id, offered = found
        # Without an offer, for a push of the share of another worker.
        kept = self._offering.pushes.forget(request_id) or offered
        if kept:
            self._offering.core.release(request_id)
        else:
            self._offering.core.abort(request_id)
        return kept

    def _free(self, request_id: str) -> None:
        self._offering.pushes.forget(request_id)
        self._offering.core.release(request_id)


def _within(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)
