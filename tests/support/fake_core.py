"""An engine core without a model: it owns pages and fills them with what tells them apart.

It obeys the contract of engine/connector.py. Calls of a connector are recorded; what a
test has to wait for is an event.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pdgate.engine.connector import Arrival, Connector, Keep, Load, Pages
from pdgate.engine.hand_over.registry import connect
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.layout import Layout
from pdgate.transfer import registry
from pdgate.transfer.base import Region
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger.process_mover import ProcessMover
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.ports import free_port

SECONDS = waiting.PATIENCE_SECONDS
LAYOUT = Layout(layers=3, blocks=16, kv_heads=2, block_tokens=4, head_dim=8)


@dataclass
class FakeCore:
    """One engine. `blocks` of a request are given by the test.

    Attributes:
        results: What `loaded` was called with, in order.
        handed: What `sampled` was called with, in order.
        freed: Request ids whose kept pages were released.
        prefills: (request id, prompt, tokens) of `submit_prefill`; `blocks_for_prefill`
            are used, and they are kept at once if `prefills_at_once`.
    """

    backend_name: str
    protocol: str
    role: str
    layout: Layout = LAYOUT
    lease_seconds: float = SECONDS
    model: str = "tiny"
    peer: str = ""
    prefill_queue: str = ""
    mover: Literal["process", "threads"] = "threads"
    patience: Patience = field(default_factory=Patience)
    kv_port: int = 0
    whole_pages: bool = False
    max_seqs: int = 64
    max_local_prefill: int | None = None
    max_prefill_queue: int | None = None
    identity: Identity = field(default_factory=Identity)
    results: "queue.Queue[tuple[str, str | None]]" = field(default_factory=queue.Queue)
    handed: list[tuple[str, int]] = field(default_factory=list)
    given_up: "queue.Queue[tuple[str, str]]" = field(default_factory=queue.Queue)
    freed: "queue.Queue[str]" = field(default_factory=queue.Queue)
    aborted: "queue.Queue[str]" = field(default_factory=queue.Queue)
    prefills: "queue.Queue[tuple[str, Sequence[int], int]]" = field(default_factory=queue.Queue)
    blocks_for_prefill: Sequence[int] = (9, 2)
    prefills_at_once: bool = True

    def __post_init__(self) -> None:
        self.backend = registry.load(self.backend_name, identity=self.identity)
        self.regions = self.open_regions()
        self.settings = ConnectorSettings(
            role=self.role,
            host="127.0.0.1",
            api_port=free_port(neighbours=1),
            kv_host="127.0.0.1",
            kv_port=self.kv_port,
            lease_seconds=self.lease_seconds,
            model=self.model,
            peer=self.peer,
            queue=self.prefill_queue,
            mover=self.mover,
            patience=self.patience,
            whole_pages=self.whole_pages,
            max_seqs=self.max_seqs,
            max_local_prefill=self.max_local_prefill,
            max_prefill_queue=self.max_prefill_queue,
            identity=self.identity,
            moment=self.moment,
        )
        try:
            self.connector: Connector = connect(
                self.protocol,
                core=self,
                layout=self.layout,
                regions=self.regions,
                backend=self.backend,
                settings=self.settings,
            )
        except BaseException:
            self.backend.close()
            raise

    def open_regions(self) -> list[Region]:
        return [self.backend.allocate(self.layout.total_bytes) for _ in range(self.layout.tp)]

    def moment(self) -> DeviceEvent | None:
        """On a CPU all has happened that was asked for."""
        return None

    def close(self) -> None:
        self.connector.close()
        self.backend.close()

    @property
    def mover_pid(self) -> int:
        assert isinstance(self.connector, TwoSided)
        (mover,) = self.connector.movers
        assert isinstance(mover, ProcessMover)
        return mover.pid

    @property
    def region(self) -> Region:
        """Where there is one shard."""
        (region,) = self.regions
        return region

    # What a connector may call.

    def loaded(self, request_id: str, error: str | None = None) -> None:
        self.results.put((request_id, error))

    def sampled(self, request_id: str, token: int) -> None:
        self.handed.append((request_id, token))

    def came_along(self, request_id: str, state: bytes) -> None:
        raise AssertionError("these connectors are told of no state's size")

    def gave_up(self, request_id: str, error: str) -> None:
        self.given_up.put((request_id, error))

    def release(self, request_id: str) -> None:
        self.freed.put(request_id)

    def submit_prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        self.prefills.put((request_id, prompt, tokens))
        if self.prefills_at_once:
            self.write(self.blocks_for_prefill, seed=1)
            pages = Pages(self.blocks_for_prefill, tokens)
            threading.Thread(
                target=self.connector.kept, args=(request_id, keep, pages, None, "length")
            ).start()

    def abort(self, request_id: str) -> None:
        self.aborted.put(request_id)

    # What a test does with it.

    def prefill(
        self,
        arrival: Arrival,
        blocks: Sequence[int],
        *,
        seed: int = 1,
        finish_reason: str = "length",
        first_token: int | None = 7,
    ) -> Mapping[str, Any] | None:
        """A whole prefill, from arrival to what is answered."""
        keep = self.connector.plan(arrival)
        assert isinstance(keep, Keep)
        return self.finish(
            arrival, keep, blocks, seed=seed, finish_reason=finish_reason, first_token=first_token
        )

    def finish(
        self,
        arrival: Arrival,
        keep: Keep,
        blocks: Sequence[int],
        *,
        seed: int = 1,
        finish_reason: str = "length",
        first_token: int | None = 7,
    ) -> Mapping[str, Any] | None:
        self.write(blocks, seed)
        pages = Pages(blocks, len(arrival.prompt))
        return self.connector.kept(arrival.id, keep, pages, first_token, finish_reason)

    def load(self, arrival: Arrival, blocks: Sequence[int], skip_tokens: int = 0) -> Load:
        """Plans and starts; `result` has the outcome."""
        load = self.connector.plan(arrival)
        assert isinstance(load, Load)
        self.connector.start(arrival.id, load, Pages(blocks, load.tokens), skip_tokens)
        return load

    def result(self) -> str | None:
        """How the next load ended: None is well."""
        return self.results.get(timeout=SECONDS)[1]

    def write(self, blocks: Sequence[int], seed: int) -> None:
        for index, block in enumerate(blocks):
            for layer in range(self.layout.layers):
                self._put(layer, block, content(self.layout, layer, index, seed))

    def holds(self, blocks: Sequence[int], seed: int, first: int = 0) -> bool:
        """Whether the blocks hold what `write` put there, or in the other engine's pages."""
        return all(
            self.page(layer, block) == b"".join(content(self.layout, layer, index, seed))
            for index, block in enumerate(blocks, first)
            for layer in range(self.layout.layers)
        )

    def page(self, layer: int, block: int) -> bytes:
        """K and V of all heads, shard by shard: with copies, if shards share heads."""
        return b"".join(bytes(view) for view in self._views(layer, block))

    def _put(self, layer: int, block: int, page: Sequence[bytes]) -> None:
        for view, part in zip(self._views(layer, block), page, strict=True):
            view[:] = part

    def _views(self, layer: int, block: int) -> list[memoryview]:
        start = self.layout.page_offset(layer, block)
        stop = start + self.layout.page_bytes
        return [region.memory[start:stop] for region in self.regions]


def content(layout: Layout, layer: int, index: int, seed: int) -> list[bytes]:
    """What each shard holds of a page. Every head differs, and none is zero, as untouched
    pages are.
    """
    rows = layout.block_tokens * layout.head_dim * layout.item_bytes
    first = seed * 97 + layer * 31 + index * 7
    return [
        b"".join(
            bytes([1 + (first + plane * 101 + head * 13) % 255]) * rows
            for plane in range(2)
            for head in layout.shard_heads(shard)
        )
        for shard in range(layout.tp)
    ]
