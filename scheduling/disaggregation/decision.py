"""Decision for one call, and why: counted, and shown in the call's record.

Reasons are few and fixed, because each is a label in the metrics.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdgate.protocols.members import plain_members


@plain_members
class Taken(StrEnum):
    """
    SPLIT: prefill reads the prompt, decode goes on.
    LOCAL: decode does it all.
    PREFILL_ONLY: prefill's one token is the whole answer.
    """

    SPLIT = "split"
    LOCAL = "local"
    PREFILL_ONLY = "prefill_only"


ALWAYS: Final = "always asked for"
NEVER: Final = "never asked for"
SHORT_PROMPT: Final = "short prompt"
LONG_PROMPT: Final = "long prompt"
PREFILL_IS_BUSY: Final = "prefill is busy"
SOONER: Final = "sooner"
MEASURING: Final = "measuring"
ONE_TOKEN: Final = "one token"
DECODE_CANNOT_PREFILL: Final = "decode cannot prefill"
NO_PREFILL: Final = "no prefill engine"
NO_ROOM: Final = "no decode engine has room"


@dataclass(frozen=True, slots=True)
class Decision:
    """
    Attributes:
        split_seconds, local_seconds: Until the first token, as expected; None if nothing was.
        held_up_seconds: Of all other calls together, if this one is local.
        among: Ids of the decode engines that it is right for, as they have the prompt cached; empty
            for all of them.
    """

    taken: Taken
    reason: str
    split_seconds: float | None = None
    local_seconds: float | None = None
    held_up_seconds: float | None = None
    among: tuple[str, ...] = ()

    def may_stay_at(self, engine_id: str) -> bool:
        """Whether the engine that was to read the prompt for others may as well keep the call, if it can answer."""
        if self.among:
            return engine_id in self.among
        # That is to go where prefill is not busy.
        return self.reason != PREFILL_IS_BUSY
