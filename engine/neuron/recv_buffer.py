"""D's side of one pairing: looks requests up at one P and receives them.

    load --> waiting --lookup_all succeeds--> transferring --all landed--> [lookup_token] --> loaded
                |  '-- too late, cancelled: P learns it --------------------> failed
                '-- P is gone: --------------------------------------------> failed

A thread each, so that a P that is dead, slow or frozen holds up no other's requests.

Once a lookup has succeeded P writes, and what is posted cannot be taken back: a request that
is cancelled then is received to its end. If P falls silent meanwhile its requests have
failed, but their pages stay taken (adrift) until P says that it writes no more, or is gone.
A broken connection is taken for P's end: P closes it last of all.
"""

import logging
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Final

from pdgate.engine.neuron import kv_map, messages
from pdgate.engine.neuron.dealer import Dealer
from pdgate.engine.neuron.ground import Ground
from pdgate.engine.neuron.load import NeuronLoad
from pdgate.engine.neuron.lookups import LONGEST_SECONDS, Lookups
from pdgate.engine.neuron.messages import Message
from pdgate.engine.neuron.posts import CompletionToken
from pdgate.engine.neuron.setup import Setup
from pdgate.engine.neuron.transfer_engine import IMMEDIATES, ReceiveEngine
from pdgate.engine.neuron.whole_pages import KEY
from pdgate.engine.worker_rules import RequestState
from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Grant, Op, Region, TransferError
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.parts import Pieces

CLOSE_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


class RecvBuffer:
    """
    Args:
        immediate: Of what P writes into us: the first of `IMMEDIATES` that are its own.
        ended: Called when nothing more can be loaded here.
    """

    def __init__(
        self,
        setup: Setup,
        identity: str,
        peer: tuple[str, int],
        immediate: int,
        ended: Callable[["RecvBuffer"], None],
    ) -> None:
        self.peer = peer
        self._setup = setup
        self._immediate = immediate
        self._ended = ended
        self._lock = threading.Lock()
        self._inbox: list[NeuronLoad] = []
        self._cancelled: set[str] = set()
        self._open = True
        self._closing = False
        self._lookups = Lookups()
        self._loads: dict[str, NeuronLoad] = {}
        self._engine: ReceiveEngine | None = None
        self._grants: list[Grant] = []
        self._awaited: dict[str, Pieces] = {}
        """Where P may write now, by the region's epoch."""
        self._dealer = Dealer(identity, *peer, setup.silence_seconds, setup.identity)
        self._thread = threading.Thread(target=self._run, name="neuron-receive", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def load(self, load: NeuronLoad) -> bool:
        """False if this pairing has ended: another may be begun."""
        with self._lock:
            if not self._open:
                return False
            self._inbox.append(load)
        self._dealer.wake()
        return True

    def cancel(self, request_id: str) -> None:
        with self._lock:
            self._cancelled.add(request_id)
        self._dealer.wake()

    def close(self) -> None:
        """Ends what is left; returns when it has."""
        self._closing = True
        self._dealer.wake()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        error = HandOverError(Why.CLOSING, "this engine ends")
        try:
            self._dealer.connect()
            self._engine = self._pair()
            while not self._closing:
                self._turn()
        except (HandOverError, TransferError, OSError) as failure:
            error = failure if isinstance(failure, HandOverError) else _broken(failure)
            log.info("no KV from %s any more: %s", self._dealer.name, error)
        except Exception as failure:
            # A bug fails these requests; without `loaded` their pages would be lost for good.
            log.exception("receiving from %s broke", self._dealer.name)
            error = _broken(failure)
        try:
            self._give_up(error)
        finally:
            with self._lock:
                self._open = False
                late, self._inbox = self._inbox, []
            for load in late:
                self._finish(load, str(error))
            for grant in self._grants:
                grant.revoke()
            if self._engine is not None:
                self._engine.close()
            self._dealer.close()
            self._ended(self)

    def _pair(self) -> ReceiveEngine:
        """Raises HandOverError, TransferError, OSError."""
        setup = self._setup
        memory = [self._grant(region) for region in setup.regions]
        offer = {}
        if setup.arrivals is not None:
            offer[KEY] = descriptors.as_data(self._grant(setup.arrivals))
        ours = kv_map.as_data(setup.shape, memory, immediate=self._immediate, **offer)
        said = self._dealer.ask(messages.kv_map_init(ours))
        messages.raise_error(said)
        theirs = kv_map.from_data(said.get("kv_map"), setup.shape, setup.backend.name)
        return ReceiveEngine(
            Ground(setup.backend, self._dealer.wake, setup.silence_seconds),
            setup.shape,
            setup.regions,
            theirs,
            self._immediate,
            setup.backend.allocate,
            setup.wait_seconds + setup.silence_seconds,
            self._awaited,
            setup.arrivals,
        )

    def _grant(self, region: Region) -> Descriptor:
        """P may write where we wait for it to, and nowhere else."""
        pieces = self._awaited[region.descriptor.epoch] = Pieces()
        only = range(self._immediate, self._immediate + IMMEDIATES)
        grant = region.grant(self._dealer.peer, Op.WRITE, pieces, inf, only)
        self._grants.append(grant)
        return grant.descriptor

    def _turn(self) -> None:
        """The next thing to do, or to wait for. Raises HandOverError."""
        self._take_in()
        self._pump()
        now = time.monotonic()
        for load in [load for load in self._loads.values() if load.state is RequestState.WAITING]:
            if load.cancelled or now >= load.until:
                self._let_go(load)
        asked = self._lookups.next(time.monotonic())
        if asked is not None:
            self._look_up(self._loads[asked])
            return
        if self._transferring and now - self._dealer.heard > self._setup.ping_seconds:
            self._dealer.ask(messages.handshake())
        self._dealer.wait(self._wake_at)

    @property
    def _transferring(self) -> list[NeuronLoad]:
        return [load for load in self._loads.values() if load.state is RequestState.TRANSFERRING]

    @property
    def _wake_at(self) -> float:
        ends = [load.until for load in self._loads.values() if load.state is RequestState.WAITING]
        if self._transferring:
            ends.append(self._dealer.heard + self._setup.ping_seconds)
        return min([self._lookups.wake_at, *ends])

    def _take_in(self) -> None:
        with self._lock:
            come, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, set()
        for load in come:
            self._loads[load.request_id] = load
            self._lookups.add(load.request_id, time.monotonic())
        for request_id in cancelled:
            if (one := self._loads.get(request_id)) is not None:
                one.cancelled = True

    def _pump(self) -> None:
        """Raises HandOverError if a transfer has failed, and with it the whole pairing."""
        assert self._engine is not None, "paired before the first turn"
        self._engine.pump()
        for load in self._transferring:
            token = load.token
            if token is None or not token.done:
                continue
            if token.error is not None:
                raise _broken(token.error)
            if load.output is not None:
                self._finish(load)
            elif load.cancelled:
                self._let_go(load)
            elif self._lookups.absent(load.request_id):
                self._lookups.add(load.request_id, time.monotonic())

    def _look_up(self, load: NeuronLoad) -> None:
        """Raises HandOverError if the peer is gone, or TransferError."""
        token_only = load.state is RequestState.TRANSFERRING
        say = messages.lookup_token if token_only else messages.lookup_all
        said = self._dealer.ask(say(load.uid, load.blocks))
        try:
            messages.raise_error(said)
            if said.get("success") is not True:
                self._lookups.failed(load.request_id, time.monotonic())
                return
            load.output = messages.token(said)
            if token_only:
                # All has landed; without a token the core samples it from the last logits.
                self._finish(load)
            else:
                self._receive(load, said)
        except HandOverError as error:
            # About this request; what is under way for others goes on.
            self._finish(load, str(error))
            return
        except ValueError as error:
            raise _broken(error) from None

    def _receive(self, load: NeuronLoad, said: Message) -> None:
        """Raises ValueError, TransferError: then the two ends have posted different lists."""
        assert self._engine is not None, "paired before the first lookup"
        theirs = [block for block in messages.blocks(said) if block is not None]
        self._lookups.remove(load.request_id)
        load.state = RequestState.TRANSFERRING
        load.token = CompletionToken()
        self._engine.receive(load.uid, load.blocks, theirs, load.token)

    def _let_go(self, load: NeuronLoad) -> None:
        """Of one that P is not sending. Raises HandOverError."""
        waited = self._setup.wait_seconds
        why = HandOverError(Why.UNKNOWN, f"nothing under {load.uid!r} within {waited:g} s")
        self._finish(load, None if load.cancelled else str(why))
        self._dealer.ask(messages.abort(load.uid))

    def _finish(self, load: NeuronLoad, error: str | None = None) -> None:
        self._lookups.remove(load.request_id)
        self._loads.pop(load.request_id, None)
        if load.cancelled:
            error = "cancelled"
        counters, core = self._setup.counters, self._setup.core
        if error is None:
            # Every load that ends well has been received, by an engine.
            assert self._engine is not None, "paired before the first lookup"
            self._engine.put_in_order(load.blocks)
            counters.transfers += 1
            counters.bytes_moved += load.bytes
            if load.output is not None:
                core.sampled(load.request_id, load.output)
        else:
            counters.failed += 1
            log.info("load of %s failed: %s", load.request_id, error)
        core.loaded(load.request_id, error)

    def _give_up(self, error: HandOverError) -> None:
        """Everything here has failed; but pages that P may write into stay taken."""
        self._take_in()
        if self._engine is not None:
            self._engine.end(TransferError(str(error)))
        for load in list(self._loads.values()):
            if load.state is RequestState.WAITING or self._dealer.gone:
                self._finish(load, str(error))
        adrift = list(self._loads.values())
        for load in adrift:
            self._setup.counters.stranded += load.pages
            self._setup.core.gave_up(load.request_id, str(error))
        until = time.monotonic() + CLOSE_SECONDS / 2
        for load in adrift:
            while not self._writes_no_more(load):
                if self._closing and time.monotonic() > until:
                    break
            self._setup.counters.stranded -= load.pages
            self._finish(load, str(error))

    def _writes_no_more(self, load: NeuronLoad) -> bool:
        """Asks P, if it answers; newcomers are refused meanwhile."""
        with self._lock:
            late, self._inbox = self._inbox, []
        for one in late:
            self._finish(one, str(HandOverError(Why.SILENT, f"{self._dealer.name} is adrift")))
        try:
            said = self._dealer.ask(messages.abort(load.uid))
            if said.get("request_id") == load.uid or said.get("status") == "error":
                return True
            self._dealer.wait(time.monotonic() + LONGEST_SECONDS)
        except HandOverError as error:
            log.debug("%s: %s", self._dealer.name, error)
        return self._dealer.gone


def _broken(error: Exception) -> HandOverError:
    return HandOverError(Why.BROKEN, str(error))
