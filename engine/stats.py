"""Counts of the core. Written on its thread, read anywhere: a torn read is harmless."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Counters since the start; tokens unless the name says otherwise.

    Attributes:
        prompts_chosen: Of those computed, the ones that a peer was to compute.
        first_tokens: Requests whose prompt is counted: they got their first token.
        turns: Steps of sequences from which at least one token of an answer came.
        turns_with_guesses, guessed: Those of them in which tokens were guessed, and how many were.
        accepted: Guesses that were right, by their place among those of a turn.
        states_used, states_accepted: First turns in which guesses came of a state of prefill's, and the guesses that were right.
        states_refused: What came along with pages and was no state to guess from.
    """

    prompts_computed: int = 0
    prompts_chosen: int = 0
    prompts_from_cache: int = 0
    prompts_from_peer: int = 0
    first_tokens: int = 0
    generated: int = 0
    requests_stopped: int = 0
    requests_cut: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    loads_failed: int = 0
    loaded_bytes: int = 0
    leases_ended: int = 0
    turns: int = 0
    turns_with_guesses: int = 0
    guessed: int = 0
    accepted: list[int] = field(default_factory=list)
    states_used: int = 0
    states_accepted: int = 0
    states_refused: int = 0
    steps: int = 0
    stepping_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What is the case now: requests by state, blocks by owner.

    Attributes:
        queued_tokens: Of prompts, still to be computed here.
        block_tokens: In a KV block.
        caches_prefixes: Whether blocks are found again by what they hold.
    """

    running: int
    waiting: int
    loading: int
    queued_tokens: int
    block_tokens: int
    caches_prefixes: bool
    blocks_total: int
    blocks_used: int
    blocks_kept: int
    preemptions: int

    @property
    def has_requests(self) -> bool:
        return self.running + self.waiting + self.loading > 0
