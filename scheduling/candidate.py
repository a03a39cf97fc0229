"""An instance as a policy sees it: the record, and what is in flight there."""

from dataclasses import dataclass, field

from pdgate.protocols.instance import Instance
from pdgate.scheduling.speed import Speed
from pdgate.scheduling.status import Status


@dataclass(slots=True, eq=False)
class Candidate:
    """One instance and the gateway's own account of it.

    Attributes:
        up: Answered its last probe, and no call has been refused since.
        models: Names that it serves; kept while it is down.
        calls: Reserved and not yet ended.
        tokens: Prompt tokens of those calls, estimated.
        unread_tokens: Of these, what it has still to compute itself.
        reading: How long it takes to read what was unread when a call came.
        loading: How long it takes, as decode, from the end of prefill to the first token.
        whole_calls: Calls whose prompt was its own to compute, since we know it.
        handed_over: Calls that it answered with KV of a prefill engine, since we know it.
        status: What it says of its own load; None while nothing (recent) is known.
    """

    instance: Instance
    up: bool = False
    models: frozenset[str] = frozenset()
    calls: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    reading: Speed = field(default_factory=Speed)
    loading: Speed = field(default_factory=lambda: Speed(level=True))
    whole_calls: int = 0
    handed_over: int = 0
    status: Status | None = None
