"""store-mediated: prefill puts the full blocks of each prompt into a shared store, decode finds them there.

No request says anything of it. What prefill computes is in the store before its answer leaves, as with vLLM's
ExampleConnector; decode computes what is behind the last block that it finds, and everything if it finds none. The
salt of a call (cache_salt) is part of the names, so no tenant finds another's prompt.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/example_connector.py.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.shared_store import BlockStore, folder_of
from pdgate.engine.layout import Layout
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger.counters import MessengerCounters

ROOM_EVERY = 64
"""Requests, after which it is seen to that the store does not grow."""


class StoreMediatedHandOver(Connector):
    fixed_role: ClassVar = True

    def __init__(
        self,
        *,
        core: Core,
        layout: Layout,
        regions: Sequence[Region],
        backend: Backend,
        settings: ConnectorSettings,
    ) -> None:
        """Raises ValueError, OSError for a folder that cannot be had."""
        self.counters = MessengerCounters()
        self.kv_address = (settings.advertised_host, settings.api_port)
        self._core = core
        self._layout = layout
        self._settings = settings
        shards = [region.memory for region in regions]
        self._blocks = NamedBlocks(layout, settings.model, shards)
        self._store = BlockStore(folder_of(settings.store))
        self._kept = 0
        # One at a time: the pages of a request are few, and the disk is one.
        self._reader = ThreadPoolExecutor(1, "pdgate-kv-store")

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        names = self._blocks.names(arrival.prompt, arrival.body.get("cache_salt"))
        if self._settings.role == Role.PREFILL:
            return Keep(self._settings.lease_seconds, ticket=names)
        there = next((n for n, name in enumerate(names) if not self._store.has(name)), len(names))
        # Decode computes the last token of the prompt, as it samples from its logits.
        tokens = min(there * self._layout.block_tokens, len(arrival.prompt) - 1)
        return Load(tokens, names[:there]) if tokens > 0 else None

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        first = skip_tokens // self._layout.block_tokens
        wanted = list(zip(load.ticket, pages.block_ids, strict=False))[first:]
        self._reader.submit(self._read, request_id, wanted)

    def _read(self, request_id: str, wanted: Sequence[tuple[str, int]]) -> None:
        began = time.monotonic()
        try:
            moved = 0
            for name, block_id in wanted:
                pages = self._store.get(name, self._layout.block_bytes)
                self._blocks.write(block_id, pages)
                moved += len(pages)
        except (OSError, ValueError) as error:
            self.counters.add(failed=1, seconds=time.monotonic() - began)
            self._core.loaded(request_id, f"the shared store: {error}")
            return
        self.counters.add(transfers=1, bytes_moved=moved, seconds=time.monotonic() - began)
        self._core.loaded(request_id)

    def cancel(self, request_id: str) -> None:
        """What is being read ends by itself, soon."""

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        names: Sequence[str] = keep.ticket
        try:
            # Of the prompt alone: what was generated is not in the names.
            sent = sum(
                self._store.put(name, self._blocks.read(block_id))
                for name, block_id in zip(names, pages.block_ids, strict=False)
                if not self._store.has(name)
            )
            self._kept += 1
            if self._kept % ROOM_EVERY == 0:
                self._store.make_room()
        except OSError:
            # Decode does not find it, and computes it.
            self.counters.add(sends_failed=1)
        else:
            self.counters.add(sent=1, bytes_sent=sent)
        self._core.release(request_id)
        return None

    def dropped(self, request_id: str, why: str) -> bool:
        return False

    def close(self) -> None:
        self._reader.shutdown()
