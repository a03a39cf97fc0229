"""offload-p2p: prefill stores under an id, decode fetches it from there, whichever comes first.

    prefill   {"remote_decoder": {"kv_request_id"}}
    decode    {"remote_prefiller": {"kv_request_id", "remote_host", "remote_port"}}

A fetch that comes too late fails the request here, where vLLM's decode computes the prompt again:
`--kv-load-failure recompute` does that.

Source: vLLM 0.32.0, v1/kv_offload/tiering/p2p/manager.py.
"""

from typing import ClassVar

from pdgate.engine.connector import Arrival, Keep, Load
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects.offload_p2p import FETCH, ID, STORE
from pdgate.transfer.messenger.source import Source


class OffloadP2pHandOver(TwoSided):
    takes_ranks: ClassVar = True

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        params = arrival.params or {}
        if STORE in params and FETCH in params:
            raise ValueError(f"a request must be stored or fetched: {STORE}, {FETCH}")
        if STORE in params:
            return self.keep_for(arrival.id, _key(read.fields(params, STORE)))
        if FETCH not in params:
            return None
        of = read.fields(params, FETCH)
        source = Source(
            read.host(of, "remote_host"),
            read.port(of, "remote_port"),
            _key(of),
            wait_seconds=self.settings.lease_seconds,
        )
        return self.load_from(source, len(arrival.prompt) - 1)


def _key(fields: read.Fields) -> str:
    return f"p2p {read.text(fields, ID)}"
