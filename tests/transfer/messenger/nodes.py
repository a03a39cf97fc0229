"""Engines of any layout without a model: the messenger alone, over real backends.

Every (layer, head, token) has bytes of its own (kv_ranks.cache), and blocks are given out by
a book that knows which are free: so what arrived and what was given back can be compared.
"""

import queue
import random
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal

import numpy as np

from pdgate.transfer import registry
from pdgate.transfer.base import Region
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
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.service import MessengerService, Offering
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.messenger.workers import MessengerWorker
from pdgate.transfer.plan import memory
from pdgate.transfer.plan.layout import KvLayout
from tests.support import waiting
from tests.support.kv_ranks import Arrays, Bytes, Cache, cache, share

SECONDS = waiting.PATIENCE_SECONDS
BLOCKS = 16


def shape_of(layout: KvLayout) -> PageShape:
    return PageShape(
        model=layout.model,
        layers=layout.layers,
        blocks=BLOCKS,
        kv_heads=layout.kv_heads,
        block_tokens=layout.block_tokens,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        item_bytes=layout.item_bytes,
        tp=layout.tp,
        planes=layout.planes,
        order=layout.order,
        stages=layout.stages,
    )


class Node:
    """An engine, both sides of it. The name of a request is its key.

    Attributes:
        results: What `loaded` was called with, in order.
        came: What came beside the pages of good loads.
        freed: Requests whose kept pages were released.
    """

    def __init__(
        self,
        backend: str,
        layout: KvLayout,
        *,
        mover: Literal["threads", "process"] = "threads",
        context_bytes: int | None = None,
        slots: int = 2,
        patience: Patience | None = None,
        lease_seconds: float = SECONDS,
        port: int = 0,
        ranks: tuple[int, ...] = (),
    ) -> None:
        """`ranks`: those of the engine that are this worker's, by number; empty for all."""
        self.layout = layout
        self.ranks = ranks
        self.lease_seconds = lease_seconds
        self.results: queue.Queue[tuple[str, str | None]] = queue.Queue()
        self.given_up: queue.Queue[tuple[str, str]] = queue.Queue()
        self.freed: queue.Queue[str] = queue.Queue()
        self.aborted: queue.Queue[str] = queue.Queue()
        self.came: queue.Queue[tuple[str, Context]] = queue.Queue()
        self.blocks: dict[str, list[int]] = {}
        self.counters = MessengerCounters()
        self._free = random.Random(layout.tp).sample(range(BLOCKS), BLOCKS)
        with ExitStack() as stack:
            self.backend = registry.load(backend)
            stack.callback(self.backend.close)
            held = [
                rank for number, rank in enumerate(layout.ranks(0)) if not ranks or number in ranks
            ]
            memories = {rank: memory.packed(layout, rank, BLOCKS) for rank in held}
            sizes = [memory.end(layout, one) for one in memories.values()]
            self.regions, views = self.open_regions(sizes)
            self.arrays = Arrays(layout, memories, dict(zip(memories, views, strict=True)))
            self.shape = shape_of(layout)
            self.offers = Offers(self.counters)
            self.movers: list[Mover] = [
                ProcessMover(self.backend, region)
                if mover == "process"
                else ThreadMover(self.backend, region)
                for region in self.regions
            ]
            self.inbox = self.outbox = None
            if context_bytes is not None:
                self.inbox = Slots(self.backend, context_bytes, slots)
                self.outbox = ContextOutbox(self.backend, context_bytes, slots)
            self.pushes = PushTable(
                self,
                self.shape,
                self.offers,
                self.movers,
                outbox=self.outbox,
                counters=self.counters,
                ranks=ranks,
            )
            self.loads = Loads(
                LoadContext(
                    self,
                    self.backend,
                    self.regions,
                    self.shape,
                    self.counters,
                    lease_seconds,
                    lambda source, *_: (source.host, source.port),
                    patience or Patience(),
                    self.inbox,
                    deliver=lambda request_id, context: self.came.put((request_id, context)),
                    ranks=ranks,
                )
            )
            offering = Offering(
                self, self.offers, self.pushes, self.regions, self.shape, "e", self.counters, ranks
            )
            self.service = MessengerService("127.0.0.1", port, offering, self.submit)
            stack.callback(self.service.close)
            stack.callback(self.loads.close)
            self._stack = stack.pop_all()

    def open_regions(self, sizes: Sequence[int]) -> tuple[list[Region], list[Bytes]]:
        """One for each rank, and its bytes as they are compared."""
        regions = [self.backend.allocate(size) for size in sizes]
        return regions, [np.frombuffer(region.memory, np.uint8) for region in regions]

    @property
    def port(self) -> int:
        return self.service.port

    @property
    def worker(self) -> MessengerWorker:
        return MessengerWorker("127.0.0.1", self.port, self.ranks)

    @property
    def used(self) -> int:
        """Blocks that are not free. Each is one or the other, and of one request at most."""
        taken = [block for blocks in self.blocks.values() for block in blocks]
        assert sorted(taken + self._free) == list(range(BLOCKS))
        return len(taken)

    def close(self) -> None:
        self._stack.close()

    # What a messenger may call.

    def loaded(self, request_id: str, error: str | None = None) -> None:
        if error is not None:
            self.give_back(request_id)
        self.results.put((request_id, error))

    def gave_up(self, request_id: str, error: str) -> None:
        self.given_up.put((request_id, error))

    def release(self, request_id: str) -> None:
        self.give_back(request_id)
        self.freed.put(request_id)

    def abort(self, request_id: str) -> None:
        self.give_back(request_id)
        self.aborted.put(request_id)

    @staticmethod
    def submit(key: str, prompt: Sequence[int], lent: Lent | None, readers: Sequence[str]) -> None:
        raise HandOverError(Why.UNSUPPORTED, "this node computes nothing for others")

    # What a test does with it.

    def take(self, key: str, tokens: int) -> list[int]:
        count = self.shape.blocks_for(tokens)
        taken, self._free = self._free[:count], self._free[count:]
        self.blocks[key] = taken
        return taken

    def give_back(self, key: str) -> None:
        self._free += self.blocks.pop(key, [])

    def expect(self, key: str, tokens: int) -> Cache:
        """Takes the pages of a prompt, all computed, but nobody has been told."""
        self.offers.expect(key, key)
        self.pushes.expect(key, key)
        content = cache(self.layout, tokens)
        self.arrays.fill(self.take(key, tokens), content)
        return content

    def computed(self, key: str, tokens: int, layers: Sequence[int] | None = None) -> None:
        for layer in range(self.layout.layers) if layers is None else layers:
            self.pushes.computed(key, layer, self.blocks[key], tokens)

    def kept(self, key: str, tokens: int, context: Context | None = None) -> None:
        """As an engine does whose request has ended."""
        said = context or Context()
        blocks = self.blocks[key]
        match self.pushes.kept(key, blocks, tokens, said.first_token, said.data):
            case Kept.DONE:
                self.release(key)
            case Kept.WAITS:
                assert self.offers.put(key, blocks, tokens, said.first_token, said.data)
            case Kept.PUSHING:
                pass

    def load(
        self,
        key: str,
        port: int,
        tokens: int,
        *,
        skip: int = 0,
        wait_seconds: float = SECONDS,
        push: bool = True,
        by_layer: bool = True,
        context: bool = False,
    ) -> None:
        """Of these tokens the first `skip` blocks are here already."""
        source = Source(
            "127.0.0.1",
            port,
            key,
            wait_seconds,
            push=push,
            by_layer=by_layer,
            context=context,
        )
        self.loads.start(key, source, Target(self.take(key, tokens), tokens, skip))

    def result(self) -> str | None:
        """How the next load ended: None is well."""
        return self.results.get(timeout=SECONDS)[1]

    def holds(self, key: str, content: Cache, skip: int = 0) -> bool:
        """All of it but the skipped blocks, and nothing anywhere else."""
        return self.has(key, content, skip) and self.written() <= set(self.blocks[key])

    def has(self, key: str, content: Cache, skip: int = 0) -> bool:
        """All of it but the skipped blocks."""
        wanted = content.copy()
        wanted[:, :, :, : skip * self.layout.block_tokens] = 0
        return all(
            np.array_equal(
                self.arrays.gather(self.blocks[key], rank, content.shape[3]),
                share(self.layout, rank, wanted),
            )
            for rank in self.arrays.regions
        )

    def written(self) -> set[int]:
        """Blocks to which bytes have come."""
        return {
            block
            for rank in self.arrays.regions
            for layer in range(len(self.layout.layers_of(rank)))
            for plane in range(self.layout.planes)
            for block in range(BLOCKS)
            if self.arrays.view(rank, layer, plane, block).any()
        }
