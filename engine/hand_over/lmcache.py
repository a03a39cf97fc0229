"""lmcache: prefill pushes the full blocks of a prompt to the decode engine that its leg names, and notifies the gateway.

    prefill   {"disagg_spec": {req_id, receiver_host, receiver_init_port: [...], ...}}
    then      msgpack {"type": "ProxyNotif", "req_id"} to the gateway's PULL socket, when decode has all of it
    decode    nothing: it finds the blocks by the prompt's tokens

The gateway's address is `peer`, 127.0.0.1:7500 without one. A push that fails notifies no gateway, so decode is not asked for what
is not there. Source: LMCache 0.5, lmcache/v1/storage_backend/pd_backend.py.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import zmq

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.hand_over.pushed_blocks import PushedBlocks, push
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.protocols.dialects.lmcache import SPEC
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger.counters import MessengerCounters

PROXY: Final = ("127.0.0.1", 7500)
LINGER_MS: Final = 500

log = logging.getLogger(__name__)


class LMCacheHandOver(Connector):
    def __init__(
        self,
        *,
        core: Core,
        layout: Layout,
        regions: Sequence[Region],
        backend: Backend,
        settings: ConnectorSettings,
    ) -> None:
        """Listens for peers from now on. Raises OSError, ValueError."""
        self.counters = MessengerCounters()
        self._core = core
        self._layout = layout
        self._settings = settings
        self._blocks = NamedBlocks(layout, settings.model, [region.memory for region in regions])
        self._pushed = PushedBlocks(
            settings.kv_host, settings.kv_port, settings.identity, layout.block_bytes
        )
        self.kv_address = (settings.advertised_host, self._pushed.port)
        self._sender = ThreadPoolExecutor(1, "pdgate-push")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._proxy: zmq.Socket[bytes] | None = None

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        names = self._blocks.names(arrival.prompt, arrival.body.get("cache_salt"))
        params = arrival.params or {}
        if SPEC in params:
            self._settings.demand(Role.PREFILL)
            spec = read.fields(params, SPEC)
            ports = spec.get("receiver_init_port")
            if not isinstance(ports, list) or not ports:
                raise ValueError("receiver_init_port must be a list with a port for each rank")
            at = read.host(spec, "receiver_host"), read.port({"port": ports[0]}, "port")
            ticket = (names, at, read.text(spec, "req_id"))
            return Keep(self._settings.lease_seconds, ticket=ticket)
        found: list[bytes] = []
        for name in names:
            if (pages := self._pushed.find(name)) is None:
                break
            found.append(pages)
        # Decode computes the last token of the prompt, as it samples from its logits.
        tokens = min(len(found) * self._layout.block_tokens, len(arrival.prompt) - 1)
        return Load(tokens, found) if tokens > 0 else None

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        first = skip_tokens // self._layout.block_tokens
        moved = 0
        for found, block_id in list(zip(load.ticket, pages.block_ids, strict=False))[first:]:
            self._blocks.write(block_id, memoryview(found))
            moved += len(found)
        self.counters.add(transfers=1, bytes_moved=moved)
        self._core.loaded(request_id)

    def cancel(self, request_id: str) -> None:
        """Do nothing, as no load is ever under way."""

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        names, at, key = keep.ticket
        # Copied, so that the pages are free at once.
        copies = [
            (name, self._blocks.read(block_id))
            for name, block_id in zip(names, pages.block_ids, strict=False)
        ]
        self._core.release(request_id)
        self._sender.submit(self._push, at, key, copies)
        return None

    def _push(self, at: tuple[str, int], key: str, blocks: Sequence[tuple[str, bytes]]) -> None:
        try:
            moved = push(at, self._settings.identity, blocks)
        except OSError as error:
            self.counters.add(sends_failed=1)
            log.warning("%s is not pushed to %s:%d: %s", key, *at, error)
            return
        self.counters.add(sent=1, bytes_sent=moved)
        self._notify(key)

    def _notify(self, key: str) -> None:
        if self._proxy is None:
            host, port = self._settings.peer_address or PROXY
            self._proxy = self._context.socket(zmq.PUSH)
            self._proxy.set(zmq.LINGER, LINGER_MS)
            self._proxy.set(zmq.IPV6, ":" in host)
            bracketed = f"[{host}]" if ":" in host else host
            self._proxy.connect(f"tcp://{bracketed}:{port}")
        said = msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": key})
        try:
            self._proxy.send(said, zmq.NOBLOCK)
        except zmq.Again:
            log.warning("the gateway cannot be notified of %s", key)

    def dropped(self, request_id: str, why: str) -> bool:
        return False

    def close(self) -> None:
        self._pushed.close()
        self._sender.shutdown(cancel_futures=True)
        if self._proxy is not None:
            self._proxy.close()
        self._context.term()
