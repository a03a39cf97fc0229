"""An instance as a policy sees it: the record, and what is in flight there."""

from dataclasses import dataclass

from pdgate.protocols.instance import Instance


@dataclass(slots=True, eq=False)
class Candidate:
    """One instance and the gateway's own account of it.

    Attributes:
        up: Answered its last probe, and no call has been refused since.
        models: Names that it serves; kept while it is down.
        calls: Reserved and not yet ended.
        tokens: Prompt tokens of those calls, estimated.
    """

    instance: Instance
    up: bool = False
    models: frozenset[str] = frozenset()
    calls: int = 0
    tokens: int = 0
