"""Census of an engine's workers at the start: what each has, and what the engine is by that.

    worker 0  (stage 0, tp 0)   2 layers, heads 0 and 1   --.
    worker 1  (stage 0, tp 1)   2 layers, heads 2 and 3   --+--> Layout of the engine, alike in all
    worker 2  (stage 1, tp 0)   3 layers, heads 0 and 1   --'
    ...

Workers are numbered stage by stage. They exchange this over vLLM's own process groups, so every one
of them comes to the same end; and what does not fit ends the start of all, in one sentence.
"""

import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.engine.layout import Layout
from pdgate.transfer.plan.layout import LayoutOrder

Gather = Callable[[Any], Sequence[Any]]
"""What every worker of the engine passes, in the order of their numbers."""

MUST_AGREE: Final = (
    "host",
    "blocks",
    "kv_heads",
    "block_tokens",
    "content",
    "dtype",
    "item_bytes",
    "order",
)


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in its engine.

    Attributes:
        kv_heads: Of the whole model; 1 for a latent that all ranks share (MLA).
    """

    stage: int = 0
    tp_rank: int = 0
    stages: int = 1
    tp: int = 1
    kv_heads: int | None = None

    @property
    def number(self) -> int:
        return self.stage * self.tp + self.tp_rank


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """A worker's part of the KV cache.

    Attributes:
        layers: How many.
        kv_heads: Of this worker.
        content: Numbers of one token and head: K and V side by side, or a latent.
        order: Of heads and tokens in a block; None where only the kernel knows what is in it.
        life: Drawn anew by each worker at its start.
        host: By name.
    """

    layers: int
    blocks: int
    kv_heads: int
    block_tokens: int
    content: int
    dtype: str
    item_bytes: int
    order: LayoutOrder | None
    life: str = field(default_factory=lambda: secrets.token_hex(16))
    host: str = field(default_factory=socket.gethostname)


@dataclass(frozen=True, slots=True)
class Census:
    """
    Attributes:
        layout: Of the whole engine.
        life: Of the engine: drawn by its first worker.
        first_layer: Of this worker, counted through the model.
    """

    layout: Layout
    life: str
    first_layer: int


def taken(seat: Seat, shares: Sequence[WorkerShare]) -> Census:
    """Raises ValueError where the workers are no engine whose pages can be handed over."""
    if len(shares) != seat.stages * seat.tp:
        raise ValueError(
            f"{len(shares)} workers for {seat.stages} pipeline stages of {seat.tp} tensor ranks"
        )
    first = shares[0]
    for number, other in enumerate(shares):
        for name in MUST_AGREE:
            if getattr(other, name) != getattr(first, name):
                raise ValueError(
                    f"{name} {getattr(other, name)} at worker {number}, {getattr(first, name)} at "
                    "worker 0: PdgateConnector needs them equal"
                )
    stages = [shares[stage * seat.tp].layers for stage in range(seat.stages)]
    for number, other in enumerate(shares):
        if other.layers != stages[number // seat.tp]:
            raise ValueError(
                f"{other.layers} layers of KV at worker {number}, {stages[number // seat.tp]} at "
                "another of the same pipeline stage"
            )
    kv_heads = first.kv_heads * seat.tp if seat.kv_heads is None else seat.kv_heads
    layout = Layout(
        layers=sum(stages),
        blocks=first.blocks,
        kv_heads=kv_heads,
        block_tokens=first.block_tokens,
        head_dim=first.content,
        dtype=first.dtype,
        item_bytes=first.item_bytes,
        tp=seat.tp,
        order=first.order,
        planes=1,
        stages=tuple(stages) if seat.stages > 1 else (),
    )
    if layout.shard_kv_heads != first.kv_heads:
        raise ValueError(
            f"{first.kv_heads} KV heads in a worker's cache, {layout.shard_kv_heads} expected of "
            f"{kv_heads} over tp {seat.tp}"
        )
    return Census(layout, first.life, sum(stages[: seat.stage]))
