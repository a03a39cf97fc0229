"""Watch of a decode engine's stream, piece by piece, for the engine's pace.

It is cut into stretches of STRETCH steps, each of which is learnt from, and so is the last,
shorter one: streams that begin together end together, and then new prompts come at once.
A long stretch blurs what is to be distinguished, and of a short one it is uncertain what was read
in it, as a long prompt takes several steps.

The first token of a prompt that was read comes with the pieces of the same step, often as the
last of them. So what was read in a stretch is counted when the next piece comes.

All streams of an engine share its steps, so MOST_WATCHED of them at a time say enough.
"""

from typing import Final

from pdgate.scheduling.account import context_tokens_of
from pdgate.scheduling.endpoint import Endpoint

STRETCH: Final = 8
MOST_WATCHED: Final = 4


class StreamWatch:
    """Counts among its engine's watched streams until `end`."""

    __slots__ = ("_endpoint", "_latest", "_read_before", "_since", "_steps")

    def __init__(self, endpoint: Endpoint) -> None:
        endpoint.watched += 1
        self._endpoint = endpoint
        self._since: float | None = None
        self._latest = 0.0
        self._steps = self._read_before = 0

    def pieces(self, count: int, now: float) -> None:
        """Count pieces that came at once; `now` in monotonic seconds."""
        if self._since is None:
            self._since, self._latest, self._steps = now, now, 0
            return
        if self._steps >= STRETCH:
            self._learn(self._since)
            self._since, self._steps = self._latest, 0
        if not self._steps:
            self._read_before = self._endpoint.read_tokens
        self._steps += count
        self._latest = now

    def interrupted(self) -> None:
        """The client is slow, so what comes next does not come at the engine's pace."""
        self._since = None

    def end(self) -> None:
        self._endpoint.watched -= 1
        if self._since is not None and self._steps:
            self._learn(self._since)

    def _learn(self, since: float) -> None:
        endpoint = self._endpoint
        read = endpoint.read_tokens - self._read_before
        batch = endpoint.answering
        context_tokens = context_tokens_of(endpoint, batch)
        endpoint.latency.has_stepped(self._steps, read, self._latest - since, batch, context_tokens)
