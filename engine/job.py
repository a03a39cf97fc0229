"""One request on its way through the scheduler.

waiting --pages for the load--> loading --KV arrived--> waiting --a turn--> running
   '----------------------- no load: a turn ----------------------------------^ |
   ^--------------------------- preempted: pages gone, start again -------------'
"""

from dataclasses import dataclass, field
from enum import Enum


class JobState(Enum):
    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    DOOMED = "aborted while loading: bytes may still land in its pages"
    OVER = "over"


@dataclass(eq=False, slots=True)
class Job:
    """
    Attributes:
        tokens: The prompt, then what was sampled.
        goal: Compute this many tokens and sample nothing; None samples.
        load: Leading tokens whose KV a peer has; None for no peer, also once they arrived.
        every_logit: Logits of the prompt are wanted, so all of it is computed here.
        pinned: A peer reads its pages while it is computed, so it is not preempted.
        blocks: Its pages, in order.
        hits: Leading tokens that the prefix cache gave.
        loaded: Leading tokens that came from a peer or, before it, from the prefix cache.
        computed: Leading tokens whose KV is in the pages.
        hashes: Of its full blocks, as far as they were needed.
        number: In the order in which jobs came to the scheduler.
        salt: What keeps its blocks from calls of other salts; empty for none.
    """

    id: str
    tokens: list[int]
    prompt_tokens: int
    goal: int | None = None
    load: int | None = None
    every_logit: bool = False
    pinned: bool = False
    state: JobState = JobState.WAITING
    blocks: list[int] = field(default_factory=list)
    hits: int = 0
    loaded: int = 0
    computed: int = 0
    hashes: list[bytes] = field(default_factory=list)
    number: int = 0
    salt: str = ""

    @property
    def end(self) -> int:
        return len(self.tokens) if self.goal is None else self.goal

    @property
    def missing(self) -> int:
        """Tokens to compute until it can sample, or is done."""
        return self.end - self.computed

    @property
    def decodes(self) -> bool:
        return self.missing == 1 and len(self.tokens) > self.prompt_tokens


@dataclass(frozen=True, slots=True)
class StepChunk:
    """Tokens [start, start + count) of a job, to be computed in this step.

    Attributes:
        guesses: Tokens behind them, computed in case they are right; of a job with one token to compute.
    """

    job: Job
    start: int
    count: int
    guesses: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def completes(self) -> bool:
        """The job has all its KV after this chunk, so the next token can be sampled."""
        return self.end == self.job.end


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What to do now: compute the chunks, and start the loads of these jobs.

    Attributes:
        out_of_pages: There were too few for a job.
    """

    chunks: list[StepChunk]
    loads: list[Job]
    out_of_pages: bool = False
