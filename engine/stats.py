"""Counts of the core. Written on its thread, read anywhere: a torn read is harmless."""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counters since the start; tokens unless the name says otherwise.

    Attributes:
        prompts_chosen: Of those computed, the ones that a peer was to compute.
        first_tokens: Requests whose prompt is counted: they got their first token.
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
