"""vllm-nixl: prefill answers where its blocks are, decode reads them.

    prefill   {do_remote_decode: true}  ->  answers `answer` below
    decode    that, word for word       ->  reads remote_block_ids, releases remote_request_id

Unlike vLLM, decode reads the blocks that prefill holds for that request when it is asked, and
not those that the params name: these may be stale by then, or another request's. It finds
out when prefill's lease has ended, and missing fields fail the request instead of the engine.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pdgate.engine.connector import Arrival, Pages, Plan
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.transfer.messenger.source import Source


class NixlHandOver(TwoSided):
    takes_ranks: ClassVar = True
    takes_data_ranks: ClassVar = True

    def plan(self, arrival: Arrival) -> Plan:
        params = arrival.params or {}
        keep, load = read.flag(params, "do_remote_decode"), read.flag(params, "do_remote_prefill")
        if keep and load:
            raise ValueError("do_remote_decode and do_remote_prefill contradict each other")
        if keep:
            return self.keep_for(arrival.id, arrival.id)
        if not load:
            return None
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
        return self.load_from(source, min(offered, len(arrival.prompt) - 1))

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any] | None:
        host, port = self.service_address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
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
