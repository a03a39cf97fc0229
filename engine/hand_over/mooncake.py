"""vllm-mooncake: four generations, which the params distinguish.

    gen  prefill gets                        decode gets                    meet by
    a    do_remote_decode, nulls             prefill's answer               request id
    b    do_remote_decode                    bootstrap_server_host, _port   request id
    c    do_remote_decode                    remote_bootstrap_addr          request id
    d    do_remote_decode, transfer_id       remote_bootstrap_addr, id      transfer id

A request that did not stop by length keeps nothing, and its reader is refused at once.
A transfer id is good for one request on each side.
Prefill writes into decode's pages, layer by layer if decode asks before it is done. Only
in generation a, whose params name prefill's blocks, decode reads.

Source: as protocols/dialects/mooncake.py.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.bootstrap import BootstrapServer, query
from pdgate.engine.hand_over.two_sided import TwoSided, wire_id
from pdgate.transfer.messenger.source import Source
from pdgate.transfer.messenger.workers import MessengerWorker
from pdgate.transfer.runtime.channel import Watch

_ASKED_BY_A = "remote_engine_id"

MAX_REMEMBERED: Final = 65_536
"""At a thousand calls a second that is a minute, twice what a lease takes."""


class Once:
    """Transfer ids that were used, as each is good for one request. Thread-safe.

    On vLLM a second use gives wrong tokens, which then stay in decode's prefix cache (measured on
    0.32.0); so here it fails the request that comes second. Both sides remember, as the second
    use may reach another peer than the first.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()

    def use(self, id: str) -> None:
        """Raises ValueError for one that was used before."""
        with self._lock:
            if id in self._used:
                raise ValueError(f"{id!r} was used before, and is good for one transfer only")
            self._used[id] = None
            if len(self._used) > self._most:
                self._used.popitem(last=False)


class MooncakeHandOver(TwoSided):
    """`kv_address` is the bootstrap server's, which the first rank has; the KV side has a port of its own."""

    takes_ranks: ClassVar = True
    pushes: ClassVar = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._transfers = Once()
        # Requests of generation a: their answer carries params.
        self._answered: set[str] = set()
        self._bootstrap: BootstrapServer | None = None
        if self.settings.speaks_for_all:
            self._serve_bootstrap()

    def _serve_bootstrap(self) -> None:
        settings = self.settings
        try:
            self._bootstrap = BootstrapServer(
                settings.kv_host,
                settings.kv_port,
                self.engine_id,
                self.service_address,
                settings.identity,
            )
        except OSError:
            super().close()
            raise
        self.kv_address = (settings.advertised_host, self._bootstrap.port)

    def introduce(self, workers: Sequence[MessengerWorker]) -> None:
        super().introduce(workers)
        if self._bootstrap is not None:
            at = [(one.host, one.port) for one in workers]
            self._bootstrap.register_ranks(self.engine_id, self._layout.tp, at)

    def service_port(self) -> int:
        return 0

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        params = arrival.params or {}
        keep, load = read.flag(params, "do_remote_decode"), read.flag(params, "do_remote_prefill")
        if keep and load:
            raise ValueError("do_remote_decode and do_remote_prefill contradict each other")
        if not keep and not load:
            return None
        key = self._key(arrival, params)
        if load:
            return self.load_from(self._source(params, key), len(arrival.prompt) - 1)
        kept = self.keep_for(arrival.id, key)
        if _ASKED_BY_A in params:
            self._answered.add(arrival.id)
        return kept

    def keeps(self, finish_reason: str) -> bool:
        return finish_reason == "length"

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        params = super().kept(request_id, keep, pages, first_token, finish_reason)
        self._answered.discard(request_id)
        return params

    def dropped(self, request_id: str, why: str) -> bool:
        self._answered.discard(request_id)
        return super().dropped(request_id, why)

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any] | None:
        if request_id not in self._answered:
            return None
        host, port = self.service_address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_block_ids": list(pages.block_ids),
            "remote_host": host,
            "remote_port": port,
        }

    def locate(self, source: Source, until: float, watch: Watch) -> tuple[str, int]:
        if not source.bootstrap:
            return super().locate(source, until, watch)
        return query(
            source.host,
            source.port,
            source.rank,
            source.engine_id,
            until,
            self.settings.identity,
            watch,
        )

    def close(self) -> None:
        super().close()
        if self._bootstrap is not None:
            self._bootstrap.close()

    def _key(self, arrival: Arrival, params: Mapping[str, Any]) -> str:
        if params.get("transfer_id") is None:
            return wire_id(arrival)
        transfer_id = read.text(params, "transfer_id")
        self._transfers.use(transfer_id)
        return f"transfer {transfer_id}"

    def _source(self, params: Mapping[str, Any], key: str) -> Source:
        lease = self.settings.lease_seconds
        if "bootstrap_server_host" in params:
            host = read.host(params, "bootstrap_server_host")
            port = read.port(params, "bootstrap_server_port")
            return Source(host, port, key, lease, bootstrap=True, push=True)
        engine_id = read.text(params, "remote_engine_id")
        if "remote_bootstrap_addr" in params:
            host, port = _http(read.text(params, "remote_bootstrap_addr"))
            rank = 0
            if params.get("remote_dp_rank") is not None:
                rank = read.integer(params, "remote_dp_rank", 0, 2**16)
            return Source(host, port, key, lease, engine_id, bootstrap=True, rank=rank, push=True)
        host, port = read.host(params, "remote_host"), read.port(params, "remote_port")
        # Generation a: prefill has answered, so the pages are there or never will be.
        return Source(host, port, key, 0.0, engine_id=engine_id)


def _http(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "http":
        raise ValueError('remote_bootstrap_addr must be "http://host:port"')
    return host, port
