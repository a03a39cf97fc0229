"""Is it the call that breaks engines, or are they broken?

Two engines that fail on one call in the same way speak against the call: a third one is spared it.
If they were spoken of like that before, over another call, and none has gone well there since, it
is they: calls go on to others then, and so an outage costs one call and not all of them.
"""

from collections.abc import Collection

from pdgate.protocols.errors import CallBreaksEngines, GatewayError


class Blame:
    """
    Attributes:
        accusing: Engines that spoke against a call, and over which none has gone well since.
    """

    def __init__(self) -> None:
        self.accusing: set[str] = set()

    def worked(self, engine: str) -> None:
        """A leg there ended well."""
        self.accusing.discard(engine)

    def is_on_call(self, engines: Collection[str]) -> bool:
        """Whether it is the call's fault that these failed in the same way."""
        if self.accusing.issuperset(engines):
            return False
        self.accusing.update(engines)
        return True


def verdict(error: GatewayError) -> CallBreaksEngines:
    """What the client gets; `error` is how the second one failed."""
    return CallBreaksEngines(
        f"two engines failed on this call in the same way ({error}), so no other is tried"
    )
