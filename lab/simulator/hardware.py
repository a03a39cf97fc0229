"""Hardware: how fast a simulated engine is, and what fits into it.

    step seconds = overhead
                 + max(weights, prompt tokens read * prompt token)
                 + calls that decode * call
                 + their tokens of context * context token
                 + pairs of a read token and one before it * pair

Reading hides behind the loading of the weights, as in a real step: a few prompt tokens ride along
for nothing. The last term is attention, which makes long prompts take longer than in proportion.
"""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class Hardware:
    """
    Attributes:
        overhead_seconds: Of each step, whatever it does.
        weights_seconds: To load the model's weights, once a step.
        prompt_token_seconds: To compute a prompt token, attention apart.
        call_seconds: For each call that decodes.
        context_token_seconds: For each token of their contexts.
        pair_seconds: For each token that a prompt token looks at.
        step_tokens: That one step computes at most (chunked prefill).
        calls: That run at the same time at most.
        kv_tokens: Whose KV fits in.
        kv_bytes_per_token: Of all layers.
        link_bytes_per_second: From one engine to another.
        link_seconds: Until the first byte of a transfer moves.
    """

    overhead_seconds: float
    weights_seconds: float
    prompt_token_seconds: float
    call_seconds: float
    context_token_seconds: float
    pair_seconds: float
    step_tokens: int
    calls: int
    kv_tokens: int
    kv_bytes_per_token: int
    link_bytes_per_second: float
    link_seconds: float

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot run."""
        if not all(0 <= getattr(self, field.name) < inf for field in fields(self)):
            raise ValueError("no figure of an engine can be negative, or without end")
        if min(self.step_tokens, self.calls, self.kv_tokens, self.link_bytes_per_second) <= 0:
            raise ValueError("an engine must have room for a call, and a link")
        if self.overhead_seconds + self.weights_seconds <= 0:
            raise ValueError("a step must take time")

    def times_as_fast(self, factor: float) -> Self:
        """Its steps and its link; what fits in stays."""
        return replace(
            self,
            overhead_seconds=self.overhead_seconds / factor,
            weights_seconds=self.weights_seconds / factor,
            prompt_token_seconds=self.prompt_token_seconds / factor,
            call_seconds=self.call_seconds / factor,
            context_token_seconds=self.context_token_seconds / factor,
            pair_seconds=self.pair_seconds / factor,
            link_bytes_per_second=self.link_bytes_per_second * factor,
            link_seconds=self.link_seconds / factor,
        )

    def step_seconds(
        self, calls: int, context_tokens: float, read: int = 0, pairs: float = 0
    ) -> float:
        return (
            self.overhead_seconds
            + max(self.weights_seconds, read * self.prompt_token_seconds)
            + calls * self.call_seconds
            + context_tokens * self.context_token_seconds
            + pairs * self.pair_seconds
        )

    def transfer_seconds(self, tokens: int) -> float:
        return self.link_seconds + tokens * self.kv_bytes_per_token / self.link_bytes_per_second


PRESETS: Final = {
    # An 8B model with grouped queries (32 layers, 8 heads of 128 for K and V, 16 bits) on one GPU
    # with 80 GB at 3.3 TB/s and 400 TFLOP/s of what it could; a network of 400 Gbit/s.
    "8b": Hardware(
        overhead_seconds=0.002,
        weights_seconds=0.007,
        prompt_token_seconds=45e-6,
        call_seconds=20e-6,
        context_token_seconds=55e-9,
        pair_seconds=1.3e-9,
        step_tokens=8192,
        calls=256,
        kv_tokens=400_000,
        kv_bytes_per_token=131_072,
        link_bytes_per_second=40e9,
        link_seconds=0.005,
    ),
    # A 70B model (80 layers) over eight of them.
    "70b": Hardware(
        overhead_seconds=0.004,
        weights_seconds=0.009,
        prompt_token_seconds=50e-6,
        call_seconds=20e-6,
        context_token_seconds=20e-9,
        pair_seconds=0.9e-9,
        step_tokens=8192,
        calls=256,
        kv_tokens=1_300_000,
        kv_bytes_per_token=327_680,
        link_bytes_per_second=200e9,
        link_seconds=0.005,
    ),
}
