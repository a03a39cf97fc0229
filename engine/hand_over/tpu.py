"""tpu: a prefill engine keeps whatever ends by length, and says where; decode pulls that.

    prefill   nothing of ours  ->  answers {uuid, remote_block_ids, remote_host, remote_port}, or {}
    decode    that, word for word

{} is for a prompt under one block, of which nothing is kept. The uuid is drawn, and the key.
Unlike the TPU's, decode also takes the block that is not full.

Source: tpu-inference b8692ff, tpu_inference/distributed/tpu_connector.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects.tpu import NAMES
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger.source import Source

MOST_UUID = 2**63 - 1


class TpuHandOver(TwoSided):
    takes_ranks: ClassVar = True
    fixed_role: ClassVar = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._uuids: dict[str, int] = {}

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        if self.settings.role == Role.PREFILL:
            keep = self.keep_for(arrival.id, str(arrival.drawn))
            self._uuids[arrival.id] = arrival.drawn
            return keep
        params = arrival.params
        if not params:
            return None
        read.block_ids({"remote_block_ids": [params.get("remote_block_ids")]}, "remote_block_ids")
        source = Source(
            read.host(params, "remote_host"),
            read.port(params, "remote_port"),
            str(read.integer(params, "uuid", 0, MOST_UUID)),
            wait_seconds=0.0,
        )
        return self.load_from(source, len(arrival.prompt) - 1)

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
        short = self.keeps(finish_reason) and pages.tokens < self._layout.block_tokens
        how = "a prompt under one block" if short else finish_reason
        params = super().kept(request_id, keep, pages, first_token, how)
        self._uuids.pop(request_id, None)
        return {} if short else params

    def dropped(self, request_id: str, why: str) -> bool:
        self._uuids.pop(request_id, None)
        return super().dropped(request_id, why)

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any]:
        said = (self._uuids[request_id], list(pages.block_ids), *self.service_address)
        return dict(zip(NAMES, said, strict=True))
