"""neuron: the request id names the peer, and its uid is where both meet.

    prefill   cmpl-<uid>_<decode ip>:<api port>, or cmpl-<uid>: keeps, and samples one token
    decode    cmpl-<uid>_<prefill ip>:<api port>, or cmpl-<uid> with a configured peer: loads

P's signal plane listens at its API port + 1, and D finds it there. All of the prompt's KV
and the first token go to D, which begins with the second one. What the two say and how the
KV moves is engine/neuron's.

Source: AWS Neuron documentation, "Disaggregated Inference"; ids in
protocols/dialects/neuron.py.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pdgate.cluster import address
from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.engine.neuron import load as loading
from pdgate.engine.neuron import whole_pages
from pdgate.engine.neuron.peers import Address, Peers
from pdgate.engine.neuron.send_buffer import SendBuffer
from pdgate.engine.neuron.setup import Setup
from pdgate.protocols.dialects.neuron import SIGNAL_PORT_OFFSET, parse
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.shape import PageShape

_STATIC: Final = "cmpl-"


class NeuronHandOver(Connector):
    """Attributes:
    hands_first_token: As in `TwoSided`: prefill samples it.
    """

    hands_first_token: ClassVar = True
    fixed_role: ClassVar = True
    kv_port_offset: ClassVar = SIGNAL_PORT_OFFSET

    def __init__(
        self,
        *,
        core: Core,
        layout: Layout,
        regions: Sequence[Region],
        backend: Backend,
        settings: ConnectorSettings,
    ) -> None:
        """P listens from now on. Raises OSError if the port is taken, ValueError for a model whose
        cache is a latent.
        """
        if layout.planes != 2:
            raise ValueError("neuron hands over keys and values, and this model caches a latent")
        self.counters = MessengerCounters()
        self._core = core
        self._layout = layout
        self._settings = settings
        shape = PageShape.of(layout, settings.model)
        wanted = settings.whole_pages and settings.role == Role.DECODE
        self._arrivals = whole_pages.staging(shape, backend.allocate) if wanted else None
        setup = Setup(
            core=core,
            backend=backend,
            regions=regions,
            shape=shape,
            counters=self.counters,
            batch=settings.max_seqs,
            silence_seconds=settings.patience.silence,
            ping_seconds=settings.patience.ping,
            wait_seconds=settings.lease_seconds,
            arrivals=self._arrivals,
            identity=settings.identity,
        )
        host, port = settings.advertised_host, settings.api_port
        static = settings.peer_address if settings.role == Role.DECODE else None
        self._peers = Peers(setup, address.joined(host, port), static and _signal_plane(static))
        self._send_buffer = None
        # D does not listen; its address is what it is called on the signal plane.
        self.kv_address = (host, port)
        if settings.role == Role.PREFILL:
            signal_port = port + SIGNAL_PORT_OFFSET
            self.kv_address = (host, signal_port)
            self._send_buffer = SendBuffer(
                setup, settings.kv_host, signal_port, layer_wise=settings.layer_wise
            )

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        named = parse(arrival.wire_id)
        if named is None and not arrival.wire_id.startswith(_STATIC):
            return None
        uid, index = arrival.wire_id, arrival.index
        if named is not None:
            uid, index = named.uid, named.index or arrival.index
        if index:
            # Prompts of a list come under one id.
            uid = f"{uid}-{index}"
        if self._send_buffer is not None:
            if self._send_buffer.expect(uid, arrival.id, len(arrival.prompt)):
                return Keep(self._settings.lease_seconds, max_tokens=1)
            return None
        peer = self._settings.peer_address if named is None else (named.host, named.port)
        if peer is None:
            return None
        return Load(len(arrival.prompt), _Ticket(uid, peer))

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        ticket: _Ticket = load.ticket
        blocks: list[int | None] = [*pages.block_ids[: self._layout.blocks_for(load.tokens)]]
        there = min(len(blocks), skip_tokens // self._layout.block_tokens)
        if skip_tokens >= load.tokens:
            there = len(blocks)
        blocks[:there] = [None] * there
        self._peers.load(
            _signal_plane(ticket.peer),
            loading.NeuronLoad(
                request_id,
                ticket.uid,
                blocks,
                (len(blocks) - there) * self._layout.block_bytes,
                time.monotonic() + self._settings.lease_seconds,
                # Without pages it ended before it got any, and P is only to let go.
                cancelled=not blocks,
            ),
        )

    def cancel(self, request_id: str) -> None:
        self._peers.cancel(request_id)

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        if self._send_buffer is not None:
            self._send_buffer.layer_computed(request_id, layer, block_ids, tokens)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        assert self._send_buffer is not None, "only prefill plans to keep"
        if not self._send_buffer.kept(request_id, pages.block_ids, first_token):
            self._core.release(request_id)
        return None

    def dropped(self, request_id: str, why: str) -> bool:
        assert self._send_buffer is not None, "only prefill plans to keep"
        return self._send_buffer.dropped(request_id, why)

    def trouble(self) -> str:
        return "" if self._send_buffer is None else self._send_buffer.trouble

    def close(self) -> None:
        self._peers.close()
        if self._send_buffer is not None:
            self._send_buffer.close()
        if self._arrivals is not None:
            self._arrivals.close()


def _signal_plane(api: Address) -> Address:
    host, port = api
    return host, port + SIGNAL_PORT_OFFSET


@dataclass(frozen=True, slots=True)
class _Ticket:
    """Whom to ask for a load, and under which uid."""

    uid: str
    peer: Address
