"""Job of one engine for one call, and the listener that hears how it goes."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from pdgate.lab.simulator.kv_cache import CallShare


class SimulatedState(Enum):
    """
    ARRIVING: Its KV will come from a peer; it has no room yet.
    LOADING: It has room, and the KV is on its way.
    WAITING: It has a prompt to read, and no room yet.
    READING: Some of the prompt is computed in each step.
    DECODING: Each step gives a token.
    KEPT: It is over here, and a peer will fetch its KV.
    OVER: It holds nothing.
    """

    ARRIVING = auto()
    LOADING = auto()
    WAITING = auto()
    READING = auto()
    DECODING = auto()
    KEPT = auto()
    OVER = auto()


class JobListener(Protocol):
    """Listener to a job; may give its engine other jobs meanwhile."""

    def load(self, job: "SimulatedJob", missing_tokens: int) -> None:
        """Have the missing KV brought, as there is room for all of it."""

    def first_token(self, job: "SimulatedJob") -> None: ...

    def stepped(self, job: "SimulatedJob", steps: int) -> None:
        """A watched one has a token of each of these steps; its first one is not among them."""

    def ended(self, job: "SimulatedJob") -> None:
        """All its tokens are there."""

    def broke(self, job: "SimulatedJob") -> None:
        """Its engine is gone."""


class SimulatedJob:
    """
    Attributes:
        answer_tokens: To be made here.
        keeps: Its KV stays after its end, until `Engine.let_go`.
        produced: Tokens made before it last joined a batch; all of them when it has left it.
        since_step, last_step: Of its engine's batch: when it joined, and when it will have ended.
        share: What it holds of the engine's KV memory.
        computed: Tokens whose KV is there, of those that it must have before it decodes.
        found: Prompt tokens that were there when it first got room; None before.
    """

    __slots__ = (
        "answer_tokens", "blocks", "computed", "found", "heard", "keeps", "last_step", "produced",
        "prompt_tokens", "share", "since_step", "state",
    )  # fmt: skip

    def __init__(
        self,
        heard: JobListener,
        prompt_tokens: int,
        answer_tokens: int,
        blocks: Sequence[int],
        *,
        keeps: bool = False,
    ) -> None:
        self.heard = heard
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens
        self.blocks = blocks
        self.keeps = keeps
        self.state = SimulatedState.OVER
        self.share: CallShare | None = None
        self.found: int | None = None
        self.computed = self.produced = self.since_step = self.last_step = 0

    @property
    def context_tokens(self) -> int:
        """Tokens that it must have before it makes its next one, while it does not decode."""
        return self.prompt_tokens + self.produced

    @property
    def missing(self) -> int:
        """Tokens of the context that have still to be computed."""
        return self.context_tokens - self.computed
