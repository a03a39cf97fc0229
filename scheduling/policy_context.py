"""Context of a policy: what it may ask besides the call and the endpoints.

One object for each role of a gateway, given to `Policy.made` or to the function that an entry
point names. What draws lots or tells time is part of it, so that a simulation repeats itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Protocol

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint


class Prefixes(Protocol):
    """What policies ask of a `PrefixIndex` (scheduling/prefix/index.py)."""

    def matched(self, call: Call) -> Mapping[str, int]:
        """Instance id -> how much of the call's prompt it has; those without any are absent."""

    def cached_share(self, call: Call, endpoint: Endpoint) -> float:
        """Share of the call's prompt that the endpoint has: 0..1."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What callers should get; a policy may weigh engines by it.

    Attributes:
        ttft_seconds: Until the first token.
        tpot_seconds: Between two tokens after it, on the average of an answer.
    """

    ttft_seconds: float = 5.0
    tpot_seconds: float = 0.1


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Context of one role's policy.

    Attributes:
        role: Of the engines that the policy will choose from.
        prefixes: Which engine has what in its cache; None where there is no index.
        random: The policy's own.
        clock: Monotonic seconds.
    """

    role: Role = Role.PLAIN
    prefixes: Prefixes | None = None
    targets: Targets = field(default_factory=Targets)
    random: Random = field(default_factory=Random)
    clock: Callable[[], float] = monotonic
