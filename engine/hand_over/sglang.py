"""sglang: both sides get the same three fields and meet in a room.

    bootstrap_host, bootstrap_port   of prefill's KV side
    bootstrap_room                   the key; prompt or choice number i gets room + i

Each may be a list with one element, as SGLang's own clients send it. The engine's role
says which side it is.

Both sides get the same body. Prefill samples one token of it and no more; decode gets the KV
of the whole prompt and that token, and goes on behind it.

Sources: SGLang, managers/io_struct.py, GenerateReqInput._normalize_bootstrap_params();
disaggregation/decode.py, DecodeTransferQueue (the output id comes with the KV).
"""

from typing import Any, ClassVar, Final

from pdgate.engine.connector import Arrival, Keep, Load
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects.sglang import DEFAULT_PORT
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger.source import Source

_FIELDS: Final = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


class SglangHandOver(TwoSided):
    takes_ranks: ClassVar = True
    hands_first_token: ClassVar = True
    fixed_role: ClassVar = True

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        fields = {name: _only(arrival.body.get(name), name) for name in _FIELDS}
        if all(found is None for found in fields.values()):
            return None
        # One number serves all prompts and choices of a request, as SGLang spreads it.
        key = f"room {read.integer(fields, 'bootstrap_room', 0, 2**63 - 1) + arrival.index}"
        if self.settings.role == Role.PREFILL:
            return self.keep_for(arrival.id, key)
        if fields["bootstrap_port"] is None:
            fields["bootstrap_port"] = DEFAULT_PORT
        source = Source(
            read.host(fields, "bootstrap_host"),
            read.port(fields, "bootstrap_port"),
            key,
            wait_seconds=self.settings.lease_seconds,
        )
        return self.load_from(source, len(arrival.prompt))


def _only(found: Any, name: str) -> Any:
    if not isinstance(found, list):
        return found
    if len(found) != 1:
        raise ValueError(f"{name} must be one value: a request has one prompt here")
    return found[0]
