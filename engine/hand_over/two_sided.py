"""The part that all protocols share: both sides of a hand-over, without the words of any of them.

A protocol says in `plan` which requests are kept under which key (`_keep`) and which are
loaded from where (`_load`), and in `answer` what prefill's client gets to see.
"""

import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from pdgate.engine.connector import (
    Arrival,
    Connector,
    Core,
    Keep,
    Load,
    Pages,
    Plan,
)
from pdgate.engine.hand_over.lending import Borrowed
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger import core as messenger
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.loads import LoadContext, Loads
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.mover import Mover, ThreadMover
from pdgate.transfer.messenger.offers import Offers
from pdgate.transfer.messenger.outbox import ContextOutbox
from pdgate.transfer.messenger.process_mover import ProcessMover
from pdgate.transfer.messenger.push_table import Kept, PushTable
from pdgate.transfer.messenger.service import MessengerService, Offering
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.messenger.workers import MessengerWorker
from pdgate.transfer.runtime.channel import Watch


@dataclass(frozen=True, slots=True)
class ForReaders:
    """What a prefill that a peer asked for is kept under, and who may have it."""

    key: str
    readers: tuple[str, ...]


class TwoSided(Connector):
    """
    Attributes:
        pushes: Prefill writes into decode's pages; else decode reads prefill's.
        gives_states: A push carries the state of the last token that prefill computed (`Pages.state`), where decode has
            a use for it.
        hands_first_token: Prefill samples the first token, and decode goes on behind it;
            else decode computes the last prompt token and samples the first itself.
    """

    takes_devices: ClassVar = True
    pushes: ClassVar = False
    gives_states: ClassVar = False
    hands_first_token: ClassVar = False

    def __init__(
        self,
        *,
        core: Core,
        layout: Layout,
        regions: Sequence[Region],
        backend: Backend,
        settings: ConnectorSettings,
    ) -> None:
        """Listens from now on. `regions`: one per shard. Raises OSError if the port is taken."""
        self.core = core
        self.settings = settings
        self.counters = MessengerCounters()
        self.engine_id = settings.engine_id or uuid.uuid4().hex
        """New for every life of the engine, so that no peer takes one for another, unless asked."""
        self._layout = layout
        self._offers = Offers(self.counters)
        shape = PageShape.of(layout, settings.model, order=layout.order, stages=layout.stages)
        state_bytes = settings.state_bytes if self.gives_states else None
        self._inbox: Slots | None = None
        outbox: ContextOutbox | None = None
        if state_bytes is not None and settings.takes_states and settings.may(Role.DECODE):
            self._inbox = Slots(backend, state_bytes, settings.max_seqs)
        if state_bytes is not None and settings.may(Role.PREFILL):
            outbox = ContextOutbox(backend, state_bytes)
        self.movers = self._start_movers(backend, regions)
        self._pushes = PushTable(
            core,
            shape,
            self._offers,
            self.movers,
            outbox=outbox,
            counters=self.counters,
            ranks=settings.ranks,
        )
        self._loads = Loads(
            LoadContext(
                self.hearer(core),
                backend,
                regions,
                shape,
                self.counters,
                settings.lease_seconds,
                self.locate,
                settings.patience,
                inbox=self._inbox,
                identity=settings.identity,
                deliver=self._deliver,
                ranks=settings.ranks,
            )
        )
        offering = Offering(
            core,
            self._offers,
            self._pushes,
            regions,
            shape,
            self.engine_id,
            counters=self.counters,
            ranks=settings.ranks,
        )
        try:
            self._service = MessengerService(
                settings.kv_host,
                self.service_port(),
                offering,
                self.submit,
                settings.identity,
            )
        except BaseException:
            for mover in self.movers:
                mover.close()
            if outbox is not None:
                outbox.close()
            self._close_inbox()
            raise
        self.service_address = (settings.advertised_host, self._service.port)
        self.kv_address = self.service_address

    @property
    def worker(self) -> MessengerWorker:
        """Ourselves, for the other workers of our engine and those of peers."""
        name = self.settings.identity.name.hex()
        return MessengerWorker(*self.service_address, self.settings.ranks, name)

    def introduce(self, workers: Sequence[MessengerWorker]) -> None:
        """All of our engine's; until then peers that need another one's share are refused."""
        ours = self.worker
        self._service.workers = workers
        self._loads.fellows = [one.peer for one in workers if one.peer != ours.peer]

    def service_port(self) -> int:
        return self.settings.kv_port

    def hearer(self, core: Core) -> messenger.MessengerCore:
        """Listener of how loads end; the others hear from the core itself."""
        return core

    @abstractmethod
    def plan(self, arrival: Arrival) -> Plan: ...

    def keeps(self, finish_reason: str) -> bool:
        """Whether pages of a request that ended like this are kept."""
        return True

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any] | None:
        """kv_transfer_params of prefill's answer."""
        return None

    def locate(self, source: Source, until: float, watch: Watch) -> tuple[str, int]:
        """The KV service of the peer. May block until then; `watch` as in `dial`. Raises HandOverError."""
        return source.host, source.port

    def submit(
        self, key: str, prompt: Sequence[int], lent: Lent | None, readers: Sequence[str]
    ) -> None:
        """The first of these peers asks for a prefill that they may have. Raises HandOverError."""
        raise HandOverError(Why.UNSUPPORTED, "this protocol sends prompts by HTTP")

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        source: Source = load.ticket
        if skip_tokens >= load.tokens:
            self.core.loaded(request_id)
            self._say_goodbye(source)
            return
        to = pages.block_ids[: self._layout.blocks_for(load.tokens)]
        target = Target(to, load.tokens, skip_tokens // self._layout.block_tokens)
        # What the device still does to these pages, it does before they are filled.
        self._loads.start(request_id, source, target, self.settings.moment())

    def cancel(self, request_id: str) -> None:
        self._loads.cancel(request_id)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        if not self.keeps(finish_reason):
            why = f"the request finished by {finish_reason!r}"
            self._offers.drop(request_id, why)
            if self._pushes.drop(request_id, why):
                return None
            self.core.release(request_id)
            return None
        block_ids, tokens, after = pages.block_ids, pages.tokens, self.settings.moment()
        context = pages.state if self.gives_states else b""
        match self._pushes.kept(request_id, block_ids, tokens, context=context, after=after):
            case Kept.PUSHING:
                return self.answer(request_id, pages)
            case Kept.DONE:
                self.core.release(request_id)
                return self.answer(request_id, pages)
            case Kept.WAITS:
                pass
        if self._offers.put(request_id, block_ids, tokens, first_token, after=after):
            return self.answer(request_id, pages)
        self._pushes.forget(request_id)
        self.core.release(request_id)
        return None

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        self._pushes.computed(request_id, layer, block_ids, tokens, self.settings.moment())

    def dropped(self, request_id: str, why: str) -> bool:
        dropped = self._offers.drop(request_id, why)
        if dropped.offered:
            self.counters.add(expired=1)
        return self._pushes.drop(request_id, why) or dropped.in_use

    def break_off(self, request_id: str) -> None:
        self._pushes.break_off(request_id)

    def _deliver(self, request_id: str, context: Context) -> None:
        """What came beside the pages, before the core hears that they are there."""
        if self.hands_first_token and context.first_token is not None:
            self.core.sampled(request_id, context.first_token)
        if self.settings.takes_states and context.data:
            self.core.came_along(request_id, context.data)

    def close(self) -> None:
        self._loads.close()
        self._service.close()
        self._close_inbox()

    def _close_inbox(self) -> None:
        if self._inbox is not None:
            self._inbox.close()

    def _start_movers(self, backend: Backend, regions: Sequence[Region]) -> list[Mover]:
        """One per shard, as each rank of a sharded engine would have its own."""
        with ExitStack() as undo:
            movers = []
            for region in regions:
                movers.append(self._start_mover(backend, region))
                undo.callback(movers[-1].close)
            undo.pop_all()
        return movers

    def _start_mover(self, backend: Backend, region: Region) -> Mover:
        wanted = self.pushes and self.settings.may(Role.PREFILL)
        # Memory that another process cannot map is moved from here, if more slowly.
        if wanted and self.settings.mover == "process" and region.share() is not None:
            return ProcessMover(backend, region, self.settings.identity)
        return ThreadMover(backend, region)

    def keep_for(self, request_id: str, key: str, only: Sequence[str] = ()) -> Keep:
        """Offer the request's pages under `key` once they are computed.

        `only`: names of the processes that they are for; empty for any that knows the key.
        Raises ValueError on an engine that is not prefill.
        """
        self.settings.demand(Role.PREFILL)
        wanted = self._offers.expect(key, request_id, only)
        self._pushes.expect(key, request_id)
        if not wanted:
            # Its decode engine has asked for it and left, so it is not going to be needed.
            self.core.abort(request_id)
        most = 1 if self.hands_first_token else None
        ticket = ForReaders(key, tuple(only)) if only else None
        return Keep(self.settings.lease_seconds, ticket, max_tokens=most)

    def load_from(self, source: Source, tokens: int) -> Load | None:
        """Load the KV of the first `tokens` tokens; None, and the peer frees it, if that is none.

        Raises ValueError on an engine that is not decode.
        """
        self.settings.demand(Role.DECODE)
        if tokens > 0:
            return Load(tokens, source)
        self._say_goodbye(source)
        return None

    def _say_goodbye(self, source: Source) -> None:
        # A prompt that only we could have asked the peer to compute was never asked for.
        if not source.prompt and not isinstance(source, Borrowed):
            self._loads.farewell(source)


def wire_id(arrival: Arrival) -> str:
    """X-Request-Id, where it is what both sides meet by. Raises ValueError."""
    if not arrival.wire_id:
        raise ValueError("this hand-over needs an X-Request-Id")
    return arrival.wire_id
