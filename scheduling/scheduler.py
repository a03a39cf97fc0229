"""Chooses an instance for a leg and counts it as busy until the leg is over.

    with scheduler.reserve(Role.PREFILL, call) as prefill:
        ...                          # prefill.instance
        prefill.end()                # optional: over before the block is

The account falls with the block, whatever ends it, so it cannot drift.
"""

from collections.abc import Collection
from types import TracebackType
from typing import Self

from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineRefused, GatewayError, NoInstance
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.instances import RETRY_AFTER_SECONDS, Instances
from pdgate.scheduling.policy import Policy


class Reservation:
    """An instance that counts as busy until the block, or `end`, is over."""

    __slots__ = ("_candidate", "_ended", "_tokens", "instance")

    def __init__(self, candidate: Candidate, tokens: int) -> None:
        self.instance = candidate.instance
        self._candidate = candidate
        self._tokens = tokens
        self._ended = False
        candidate.calls += 1
        candidate.tokens += tokens

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._candidate.calls -= 1
            self._candidate.tokens -= self._tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Scheduler:
    def __init__(self, instances: Instances, prefill: Policy, decode: Policy, plain: Policy):
        self._instances = instances
        self._policies = {Role.PREFILL: prefill, Role.DECODE: decode, Role.PLAIN: plain}

    def disaggregates(self, call: Call) -> bool:
        """Whether the call's model has a pair; otherwise plain instances serve it, if any."""
        lineup = self._instances.lineup(call.model)
        return lineup.disaggregated or not lineup.up[Role.PLAIN]

    def reserve(
        self,
        role: Role,
        call: Call,
        *,
        avoid: Collection[str] = (),
        peer: Instance | None = None,
    ) -> Reservation:
        """An instance of the role, not in `avoid`, that can pair with the peer.

        Raises UnknownModel, BadRequest, NoInstance.
        """
        lineup = self._instances.lineup(call.model)
        candidates = lineup.up[role]
        if avoid:
            candidates = [c for c in candidates if c.instance.id not in avoid]
        if peer is not None and (lineup.mixed or peer.role is Role.BOTH):
            candidates = [c for c in candidates if _pairs(c.instance, peer)]
        if not candidates:
            raise NoInstance(
                f"no {role.value} engine is available", retry_after_seconds=RETRY_AFTER_SECONDS
            )
        return Reservation(self._policies[role].choose(call, candidates), call.prompt_tokens)

    def report(self, instance: Instance, error: GatewayError | None) -> None:
        """An engine that refuses connections gets no more calls until it is seen up again."""
        if isinstance(error, EngineRefused):
            self._instances.mark_down(instance.id)


def _pairs(one: Instance, other: Instance) -> bool:
    return one.protocol == other.protocol and one.id != other.id
