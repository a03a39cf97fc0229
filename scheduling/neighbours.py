"""Load from other processes in flight at the same engines, as part of an endpoint's account.

    a reservation --> endpoint.calls += 1 --> Shared.changed --> what this process tells
    what others tell --> Shared.take_in --> endpoint.calls += by how much it is more now

    near    other workers of this gateway, through memory    gateway/sync/workers/
    far     other replicas of it, through Redis              gateway/sync/replicas/

So all that weighs endpoints (policies, the rule for splitting) sees the calls of all, not this
process's, and does nothing for it. Where there is one process there is none of this.

Pure: how processes tell each other is theirs.
"""

from typing import TYPE_CHECKING, Protocol

from pdgate.protocols.instance import BOTH, PREFILL, Role

if TYPE_CHECKING:
    from pdgate.scheduling.endpoint import Endpoint

Numbers = tuple[int, int, int, int]
"""Calls, tokens, unread tokens, answering; of one engine."""


def calls_of_this_gateway(endpoint: "Endpoint") -> int:
    """Calls of all workers of this gateway, without those of its replicas."""
    shared = endpoint.shared
    return endpoint.calls if shared is None else endpoint.calls - shared.far.calls


def prompts_of_this_gateway(endpoint: "Endpoint") -> int:
    """Of these, at one that reads prompts: what an engine of both roles answers is none."""
    if endpoint.instance.role is BOTH:
        return endpoint.prefills
    return calls_of_this_gateway(endpoint)


def answers_of_this_gateway(endpoint: "Endpoint") -> int:
    """Of these, those that it answers, or is to."""
    return calls_of_this_gateway(endpoint) - endpoint.prefills


def calls_as(role: Role, endpoint: "Endpoint") -> int:
    """Of these, those that it has in that role."""
    if role is PREFILL:
        return prompts_of_this_gateway(endpoint)
    return answers_of_this_gateway(endpoint)


class ToldNumbers(Protocol):
    """Four numbers that others can read, in that order, and the calls that are only read there."""

    def __setitem__(self, index: int, number: int, /) -> None: ...


class Others:
    """The part of some others in an account.

    Attributes:
        count: How many they are; said of replicas only.
        prefills: Of calls, those that are only read there; said of workers only.
    """

    __slots__ = ("answering", "calls", "count", "prefills", "tokens", "unread_tokens")

    def __init__(self) -> None:
        self.calls = self.tokens = self.unread_tokens = self.answering = self.count = 0
        self.prefills = 0


class SharedEndpoint:
    """Account of one endpoint that processes share.

    Attributes:
        told: Where other workers read what is this process's; None where there are none.
        near, far: Of its account, what is other workers' and what is other replicas'.
        calls, tokens, unread_tokens, answering: Both together.
    """

    __slots__ = ("answering", "calls", "far", "near", "tokens", "told", "unread_tokens")

    def __init__(self, told: ToldNumbers | None = None) -> None:
        self.told = told
        self.near, self.far = Others(), Others()
        self.calls = self.tokens = self.unread_tokens = self.answering = 0

    @classmethod
    def of(cls, endpoint: "Endpoint") -> "SharedEndpoint":
        """Share an endpoint's account from now on."""
        if endpoint.shared is None:
            endpoint.shared = cls()
        return endpoint.shared

    def own(self, endpoint: "Endpoint") -> Numbers:
        """This process's part of the account."""
        return (
            endpoint.calls - self.calls,
            endpoint.tokens - self.tokens,
            endpoint.unread_tokens - self.unread_tokens,
            endpoint.answering - self.answering,
        )

    def changed(self, endpoint: "Endpoint") -> None:
        """Tells what is this process's of the account; at each change of it."""
        told = self.told
        if told is not None:
            told[0] = endpoint.calls - self.calls
            told[1] = endpoint.tokens - self.tokens
            told[2] = endpoint.unread_tokens - self.unread_tokens
            told[3] = endpoint.answering - self.answering
            told[4] = endpoint.prefills - self.near.prefills

    def take_in(
        self,
        endpoint: "Endpoint",
        others: Others,
        calls: int,
        tokens: int,
        unread_tokens: int,
        answering: int,
        prefills: int = 0,
    ) -> None:
        """`others`, which are `near` or `far`, have so much in flight now."""
        more = calls - others.calls
        if more:
            endpoint.calls += more
            self.calls += more
            others.calls = calls
        more = tokens - others.tokens
        if more:
            endpoint.tokens += more
            self.tokens += more
            others.tokens = tokens
        more = unread_tokens - others.unread_tokens
        if more:
            endpoint.unread_tokens += more
            self.unread_tokens += more
            others.unread_tokens = unread_tokens
        more = answering - others.answering
        if more:
            endpoint.answering += more
            self.answering += more
            others.answering = answering
        more = prefills - others.prefills
        if more:
            endpoint.prefills += more
            others.prefills = prefills
