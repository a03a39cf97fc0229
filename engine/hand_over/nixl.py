"""vllm-nixl: prefill answers where its blocks are, decode reads them.

    prefill   {do_remote_decode: true}  ->  answers `answer` below
    decode    that, word for word       ->  reads remote_block_ids, releases remote_request_id
              with --read-back          ->  answers the same of its own blocks, with do_remote_decode
    prefill   that, of a turn before    ->  reads them, computes what is behind, and answers as above

Unlike vLLM, decode reads the blocks that prefill holds for that request when it is asked, and
not those that the params name: these may be stale by then, or another request's. It finds
out when prefill's lease has ended, and missing fields fail the request instead of the engine.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from pdgate.engine.connector import Arrival, Keep, Load, Pages, Plan
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.transfer.messenger.source import Source

TURN_SECONDS: Final = 480.0
"""decoder_kv_blocks_ttl."""


class NixlHandOver(TwoSided):
    takes_ranks: ClassVar = True
    takes_data_ranks: ClassVar = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._turns: set[str] = set()

    def plan(self, arrival: Arrival) -> Plan:
        params = arrival.params or {}
        keep, load = read.flag(params, "do_remote_decode"), read.flag(params, "do_remote_prefill")
        if keep and load:
            raise ValueError("do_remote_decode and do_remote_prefill contradict each other")
        if not keep and not load:
            return None
        if keep and params.get("remote_block_ids") is None:
            return self.keep_for(arrival.id, arrival.id)
        if keep and not self.settings.read_back:
            raise ValueError("remote_block_ids need an engine that was started with --read-back")
        read.block_ids(params, "remote_block_ids")
        source = Source(
            read.host(params, "remote_host"),
            read.port(params, "remote_port"),
            read.text(params, "remote_request_id"),
            wait_seconds=0.0,
            engine_id=read.text(params, "remote_engine_id"),
        )
        offered = len(arrival.prompt)
        if params.get("remote_num_tokens") is not None:
            offered = read.integer(params, "remote_num_tokens", 0, 2**31)
        tokens = min(offered, len(arrival.prompt) - 1)
        if keep:
            keeps = self.keep_for(arrival.id, arrival.id)
            if tokens <= 0:
                self._say_goodbye(source)
                return keeps
            return Load(tokens, source, keep=keeps, optional=True)
        found = self.load_from(source, tokens)
        if found is None or not self.settings.read_back or arrival.index:
            return found
        return replace(found, keep=self._keeps_turn(arrival))

    def _keeps_turn(self, arrival: Arrival) -> Keep:
        """Decode keeps what it has of this turn for the prefill engine of the next one."""
        self._offers.expect(arrival.id, arrival.id)
        self._pushes.expect(arrival.id, arrival.id)
        self._turns.add(arrival.id)
        return Keep(TURN_SECONDS)

    def keeps(self, finish_reason: str) -> bool:
        return finish_reason in ("length", "stop")

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any] | None:
        host, port = self.service_address
        decodes = request_id in self._turns
        return {
            "do_remote_prefill": not decodes,
            "do_remote_decode": decodes,
            "remote_block_ids": [list(pages.block_ids)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": self._layout.tp,
            "remote_num_tokens": pages.tokens,
            "remote_prefill_cached_tokens": pages.cached_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        params = super().kept(request_id, keep, pages, first_token, finish_reason)
        self._turns.discard(request_id)
        return params

    def dropped(self, request_id: str, why: str) -> bool:
        self._turns.discard(request_id)
        return super().dropped(request_id, why)
