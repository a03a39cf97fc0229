"""P's side: a ROUTER that answers what decode engines ask, and the sending of what they may have.

One thread, with an event loop of its own, does both and never waits for a peer: an answer is a lookup in memory, a transfer
is pumped. So a decode engine that is dead, slow or talks nonsense holds up no other; and who has not proven itself
gets no further than a few words (`cluster/zmtp`).

    any thread    expect, layer_computed, kept, dropped   -> Requests, under a lock; wake
    our thread    message -> answer;  pump all pairings;  transfers that ended -> core.release
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from pdgate.cluster.networks import Allowed
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.cluster.zmtp.wire import RefusalReason
from pdgate.engine import worker_rules as rules
from pdgate.engine.neuron import kv_map, messages
from pdgate.engine.neuron.dealer import TAIL
from pdgate.engine.neuron.ground import Ground
from pdgate.engine.neuron.kept import KeptRequest, Requests
from pdgate.engine.neuron.messages import Message
from pdgate.engine.neuron.posts import CompletionToken
from pdgate.engine.neuron.proof import Guests
from pdgate.engine.neuron.setup import Setup
from pdgate.engine.neuron.transfer_engine import SendEngine, ring_bytes
from pdgate.engine.neuron.turns import NeuronTurns
from pdgate.engine.neuron.wake import Wake
from pdgate.engine.neuron.whole_pages import KEY
from pdgate.transfer import descriptors
from pdgate.transfer.base import Op, TransferError
from pdgate.transfer.descriptors import new_epoch
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.parts import Stretch
from pdgate.transfer.runtime import fleet

MAX_PAIRINGS: Final = 1024
"""Decode engines that are remembered; the one that was not heard of for longest goes first."""
CLOSE_SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 16 << 20
"""A lookup of a million blocks takes 8 MB."""
MAX_STRANGERS_BYTES: Final = 4 << 10
"""Of a message of one that has proven nothing yet."""
SETTLE_SECONDS: Final = 0.005
ANYWHERE: Final = Allowed(["0.0.0.0/0", "::/0"])
"""Who has the secret may come from any address."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Pairing:
    identity: bytes
    engine: SendEngine
    leaving: list[KeptRequest] = field(default_factory=list)


class SendBuffer:
    """
    Attributes:
        trouble: What ended our thread, if it was not `close`: no engine can be served then.
    """

    def __init__(self, setup: Setup, host: str, port: int, *, layer_wise: bool) -> None:
        """Listens from now on. Raises OSError if the port is taken, ValueError if listening there
        takes a secret.
        """
        fleet.check_place("the signal plane", host, setup.identity)
        self.trouble = ""
        self._setup = setup
        self._lock = threading.Lock()
        self._guests = Guests(setup.identity)
        self._requests = Requests(setup.shape.layers, layer_wise=layer_wise)
        self._turns = NeuronTurns()
        self._pairings: OrderedDict[bytes, _Pairing] = OrderedDict()
        self._ended: list[_Pairing] = []
        """Replaced or broken; a write may still read pages."""
        # Without a secret there is nothing to prove; then this is loopback.
        self._open = setup.identity.is_open
        most = MAX_MESSAGE_BYTES if self._open else MAX_STRANGERS_BYTES
        try:
            self._listener = ZmtpListener(
                host, port, "ROUTER", ANYWHERE, most, self._heard, self._refused
            )
        except OSError as error:
            raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from None
        self._news = asyncio.Event()
        self._broke: Exception | None = None
        self._wake = Wake()
        self._ground = Ground(setup.backend, self._wake, setup.silence_seconds)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="neuron-send", daemon=True)
        self._thread.start()

    def expect(self, uid: str, request_id: str, prompt_tokens: int) -> bool:
        """False if D needs it no more. Raises ValueError if the uid is taken."""
        with self._lock:
            return self._requests.expect(uid, request_id, prompt_tokens)

    def layer_computed(
        self, request_id: str, layer: int, blocks: Sequence[int], tokens: int
    ) -> None:
        with self._lock:
            news = self._requests.computed(request_id, layer, blocks, tokens)
        if news:
            self._wake()

    def kept(self, request_id: str, blocks: Sequence[int], first_token: int | None) -> bool:
        """Whether the pages shall stay until `core.release`."""
        with self._lock:
            stays = self._requests.keep(request_id, blocks, first_token)
        self._wake()
        return stays

    def dropped(self, request_id: str, why: str) -> bool:
        """Whether the pages are still read from; then `core.release` follows."""
        with self._lock:
            one = self._requests.drop(request_id, str(HandOverError(Why.EXPIRED, why)))
            in_use = one is not None and one.leaving is not None
        if one is not None and one.kept:
            self._setup.counters.expired += 1
        self._wake()
        return in_use

    def close(self) -> None:
        self._closing = True
        self._wake()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # the last stop of a thread: a look must find why
            self.trouble = f"the signal plane broke: {error!r}"
            log.exception("the signal plane broke")
        finally:
            self._listener.close()
            self._wake.close()

    async def _serve(self) -> None:
        """Until `close`. Raises what a bug raises."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._wake.fileno(), self._woken)
        listening = loop.create_task(self._listener.run())
        listening.add_done_callback(lambda _: self._news.set())
        try:
            while not self._closing:
                try:
                    # An ended pairing is settled without a word.
                    async with asyncio.timeout(SETTLE_SECONDS if self._ended else None):
                        await self._news.wait()
                except TimeoutError:
                    pass
                self._news.clear()
                if self._broke is not None:
                    raise self._broke
                if listening.done():
                    listening.result()
                self._pump()
        finally:
            loop.remove_reader(self._wake.fileno())
            # Peers may see the end of the connection only when nothing can land any more.
            self._shut()
            listening.cancel()
            await asyncio.wait((listening,))

    def _woken(self) -> None:
        self._wake.clear()
        self._news.set()

    def _shut(self) -> None:
        for pairing in list(self._pairings.values()):
            self._end(pairing, TransferError("this engine ends"))
        until = time.monotonic() + CLOSE_SECONDS
        while self._ended and time.monotonic() < until:
            self._pump()
            # Only writes under way are left; they end on threads of the backend.
            if self._ended:
                time.sleep(SETTLE_SECONDS)

    def _heard(self, peer: ZmtpPeer, frames: list[bytes]) -> None:
        try:
            peer.say(self._guests.answer(peer.identity, frames, self._answer))
        except Exception as error:  # noqa: BLE001  (our thread raises it)
            self._broke = error
        self._news.set()
        if not self._open and self._guests.name(peer.identity):
            peer.may_send(MAX_MESSAGE_BYTES)

    def _refused(self, why: RefusalReason) -> None:
        log.info("a connection to the signal plane was ended: %s", why)

    def _answer(self, identity: bytes, message: Message) -> Message:
        try:
            match message.get("type"):
                case "handshake":
                    return messages.welcome()
                case "kv_map_init":
                    return self._pair(identity, message)
                case "lookup_all":
                    return self._lookup_all(
                        identity, messages.text(message, "request_id"), messages.blocks(message)
                    )
                case "lookup_token":
                    return self._lookup_token(messages.text(message, "request_id"))
                case "abort":
                    return self._abort(messages.text(message, "request_id"))
                case other:
                    return messages.error(f"there is no message of type {other!r}")
        except HandOverError as error:
            return messages.error(str(error))
        except (ValueError, TransferError, OSError, RecursionError) as error:
            return messages.broken(error)

    def _pair(self, identity: bytes, message: Message) -> Message:
        """Raises HandOverError, TransferError, OSError."""
        setup = self._setup
        theirs = kv_map.from_data(message.get("kv_map"), setup.shape, setup.backend.name)
        ring = setup.backend.allocate(ring_bytes(setup.shape, theirs.shape))
        try:
            engine = SendEngine(self._ground, setup.shape, setup.regions, theirs, ring)
        except BaseException:
            ring.close()
            raise
        for other in [one for one in self._pairings if address_in(one) == address_in(identity)]:
            self._end(self._pairings.pop(other), TransferError("the decode engine has begun anew"))
        self._pairings[identity] = _Pairing(identity, engine)
        if len(self._pairings) > MAX_PAIRINGS:
            self._end(next(iter(self._pairings.values())), TransferError("too many peers"))
        # D reads how long our memory is, and nothing in it.
        memory = [replace(one.descriptor, epoch=new_epoch()) for one in setup.regions]
        whole = {KEY: True} if engine.whole_pages else {}
        granted = ring.grant(
            self._guests.name(identity),
            Op.WRITE,
            Stretch(0, len(ring.memory)),
            inf,
            range(len(engine.ends)),
        )
        said = kv_map.as_data(
            setup.shape, memory, ring=descriptors.as_data(granted.descriptor), **whole
        )
        return messages.kv_map_answer(said)

    def _lookup_all(self, identity: bytes, uid: str, to: Sequence[int | None]) -> Message:
        """Raises HandOverError, TransferError."""
        pairing = self._pairings.get(identity)
        if pairing is None:
            raise HandOverError(Why.BROKEN, "the peer has to send its KV map first")
        self._pairings.move_to_end(identity)
        with self._lock:
            if why := self._requests.why_gone(uid):
                self._turns.leave((identity, uid))
                return messages.error(why)
            one = self._requests.ready(uid)
            if one is None:
                return messages.not_yet()
            if not self._turns.ask((identity, uid), self._places(), time.monotonic()):
                return messages.not_yet()
            token = CompletionToken()
            pairing.engine.send(uid, one.blocks, to, one.gates, token)
            one.leaving = token
            one.token_due = one.first_token is None
            pairing.leaving.append(one)
            return messages.found(one.first_token, one.blocks)

    def _lookup_token(self, uid: str) -> Message:
        with self._lock:
            if why := self._requests.why_gone(uid):
                return messages.error(why)
            one = self._requests.find(uid)
            if one is None or not one.kept:
                return messages.not_yet()
            one.token_due = False
            if one.sent:
                self._requests.forget(one)
            return messages.found(one.first_token)

    def _abort(self, uid: str) -> Message:
        with self._lock:
            one = self._requests.find(uid)
            if one is None:
                # It may be on its way here.
                self._requests.unwanted(uid)
                return messages.done(uid)
            leaves = one.leaving is not None and not one.sent
            if not leaves:
                self._requests.forget(one, str(HandOverError(Why.CANCELLED, "nobody needs it")))
        if not leaves:
            if not one.kept:
                self._setup.core.abort(one.id)
            elif not one.sent:
                self._setup.core.release(one.id)
            return messages.done(uid)
        for pairing in list(self._pairings.values()):
            if one in pairing.leaving:
                # A piece that is missing would shift all that follow.
                self._end(pairing, TransferError("the decode engine gave a transfer up"))
        self._pump()
        return messages.done(uid) if one.sent else messages.not_yet()

    def _places(self) -> int:
        """How many requests may begin to leave."""
        leaving = sum(len(pairing.leaving) for pairing in self._pairings.values())
        return rules.places(rules.RequestCounts(transferring=leaving), self._setup.batch)

    def _pump(self) -> None:
        for pairing in list(self._pairings.values()):
            pairing.engine.pump()
            self._settle(pairing)
            if (error := pairing.engine.error) is not None:
                self._end(pairing, error)
        for pairing in list(self._ended):
            self._settle(pairing)
            if not pairing.leaving and pairing.engine.settled:
                self._ended.remove(pairing)
                pairing.engine.close()

    def _end(self, pairing: _Pairing, error: TransferError) -> None:
        if self._pairings.get(pairing.identity) is pairing:
            del self._pairings[pairing.identity]
        log.info("no transfers to %r any more: %s", pairing.identity, error)
        pairing.engine.end(error)
        self._ended.append(pairing)

    def _settle(self, pairing: _Pairing) -> None:
        """Lets go of what has left, well or not."""
        for one in list(pairing.leaving):
            token = one.leaving
            if token is None or not token.done:
                continue
            if token.error is not None and not pairing.engine.settled:
                continue
            pairing.leaving.remove(one)
            with self._lock:
                if token.error is not None and not one.ending:
                    one.ending = str(HandOverError(Why.BROKEN, str(token.error)))
                self._requests.left(one)
            self._let_go(one)

    def _let_go(self, one: KeptRequest) -> None:
        """Its pages have been read."""
        if one.kept or one.dropped:
            self._setup.core.release(one.id)
        elif one.ending:
            self._setup.core.abort(one.id)
        # Else it has left before its token was sampled, and `kept` finds it sent.


def address_in(identity: bytes) -> bytes:
    """ "ip:api port" of a decode engine, without what makes its identity hard to guess."""
    return identity.partition(TAIL.encode())[0]
