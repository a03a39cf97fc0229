"""What other processes of the same gateway have in flight, as part of a candidate's account.

    a reservation --> candidate.calls += 1 --> Shared.changed --> what this process tells
    what others tell --> Shared.take_in --> candidate.calls += by how much it is more now

So whoever weighs candidates (policies, the rule for splitting, limits) sees the gateway's calls,
not this process's, and does nothing for it. Where there is one process there is none of this.

Pure: how processes tell each other is gateway/neighbours/.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pdgate.scheduling.candidate import Candidate


class Told(Protocol):
    """Four numbers that others can read: calls, tokens, unread tokens, answering."""

    def __setitem__(self, index: int, number: int, /) -> None: ...


class Shared:
    """Of one candidate.

    Attributes:
        calls, tokens, unread_tokens, answering: Of its account, what is others'.
    """

    __slots__ = ("_told", "answering", "calls", "tokens", "unread_tokens")

    def __init__(self, told: Told) -> None:
        self._told = told
        self.calls = self.tokens = self.unread_tokens = self.answering = 0

    def changed(self, candidate: "Candidate") -> None:
        """Tells what is this process's of the account; at each change of it."""
        told = self._told
        told[0] = candidate.calls - self.calls
        told[1] = candidate.tokens - self.tokens
        told[2] = candidate.unread_tokens - self.unread_tokens
        told[3] = candidate.answering - self.answering

    def take_in(
        self, candidate: "Candidate", calls: int, tokens: int, unread_tokens: int, answering: int
    ) -> None:
        """All others together have so much in flight now."""
        candidate.calls += calls - self.calls
        candidate.tokens += tokens - self.tokens
        candidate.unread_tokens += unread_tokens - self.unread_tokens
        candidate.answering += answering - self.answering
        self.calls, self.tokens = calls, tokens
        self.unread_tokens, self.answering = unread_tokens, answering
