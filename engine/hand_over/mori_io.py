"""mori-io: decode reads the blocks that prefill keeps, or prefill writes into decode's, by a transfer id.

    read    prefill {do_remote_decode, transfer_id}     answers where its blocks are; decode gets that word for word
    write   prefill the same and where decode is        decode gets the id, and where prefill is, before there are blocks

A transfer id is good for one request on each side. Decode finds prefill at remote_host and remote_handshake_port; the port for
notifications is not needed here, and is the same.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/moriio/moriio_common.py.
"""

from collections.abc import Mapping
from typing import Any

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.transfer.messenger.source import Source


class MoriIoHandOver(TwoSided):
    takes_ranks = True
    pushes = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._transfers: dict[str, str] = {}

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        params = arrival.params or {}
        keep, load = read.flag(params, "do_remote_decode"), read.flag(params, "do_remote_prefill")
        if keep and load:
            raise ValueError("do_remote_decode and do_remote_prefill must not both be set")
        if not keep and not load:
            return None
        id = read.text(params, "transfer_id")
        if keep:
            kept = self.keep_for(arrival.id, id)
            self._transfers[arrival.id] = id
            return kept
        host, port = read.host(params, "remote_host"), read.port(params, "remote_handshake_port")
        if params.get("remote_block_ids") is None:
            source = Source(host, port, id, self.settings.lease_seconds, push=True)
        else:
            read.block_ids(params, "remote_block_ids")
            engine_id = read.text(params, "remote_engine_id")
            source = Source(host, port, id, 0.0, engine_id=engine_id)
        return self.load_from(source, len(arrival.prompt) - 1)

    def keeps(self, finish_reason: str) -> bool:
        return finish_reason == "length"

    def kept(self, request_id: str, *more: Any) -> Mapping[str, Any] | None:
        params = super().kept(request_id, *more)
        self._transfers.pop(request_id, None)
        return params

    def dropped(self, request_id: str, why: str) -> bool:
        self._transfers.pop(request_id, None)
        return super().dropped(request_id, why)

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any]:
        host, port = self.service_address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(pages.block_ids)],
            "remote_engine_id": self.engine_id,
            "remote_host": host,
            "remote_handshake_port": port,
            "remote_notify_port": port,
            "remote_dp_rank": 0,
            "remote_dp_rank_override": True,
            "remote_dp_size": 1,
            "remote_dp_size_local": 1,
            "tp_size": self._layout.tp,
            "transfer_id": self._transfers[request_id],
        }
