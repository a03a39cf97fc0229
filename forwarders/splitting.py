"""Whether a call is split: first what must be, then what the engines' rule says.

A call for one token is over when its prompt has been read, so prefill may answer it; it is
asked without a word of hand-over, and so keeps nothing for anybody.
"""

from typing import Final

from pdgate.forwarders.base import Engines
from pdgate.forwarders.other_apis import why_whole
from pdgate.forwarders.way import Way
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import CHAT, Call, Raw
from pdgate.protocols.instance import Instance
from pdgate.scheduling.disaggregation import Decision, Taken
from pdgate.scheduling.disaggregation.decision import DECODE_CANNOT_PREFILL

# Compared and not decoded: JSON has one way to write either. What is not raw was written by us.
_ONE: Final = Raw(b"1")
_NULL: Final = Raw(b"null")

_MUST_SPLIT: Final = Decision(Taken.SPLIT, DECODE_CANNOT_PREFILL)


def decide(engines: Engines, way: Way, call: Call, prefill: Instance) -> Decision:
    """For a call for which this prefill engine, of that way, is reserved."""
    if call.api is not None:
        why_local = why_whole(way.forwarder, call)
        if why_local is not None:
            return Decision(Taken.LOCAL, why_local)
    alone = way.prefill_can_answer and wants_one_token(call)
    if not alone:
        why_local = way.forwarder.why_local(call)
        if why_local is not None:
            return Decision(Taken.LOCAL, why_local)
        if not way.decode_can_prefill:
            return _MUST_SPLIT
    return engines.decide(call, prefill, prefill_can_answer=alone)


def wants_one_token(call: Call) -> bool:
    """Whether the answer can have no second token, so that nobody needs the KV afterwards."""
    body = call.body
    limit = body.get("max_completion_tokens") if call.path == CHAT else None
    if limit is None or limit == _NULL:
        limit = body.get("max_output_tokens" if call.path == RESPONSES else "max_tokens")
    if isinstance(limit, Raw):
        return limit == _ONE
    return type(limit) is int and limit == 1
