"""Source and target of a request's pages, and what came."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.transfer.messenger.context import NOTHING, Context
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.shape import ALL, Ranks


@dataclass(frozen=True, slots=True)
class Source:
    """
    Attributes:
        host, port: Of the KV service, unless `bootstrap`.
        key: Under which prefill offers the pages.
        wait_seconds: 0 if they must be there already.
        engine_id: Of the engine that has to answer; empty for any that is there.
        peer: Name of the process that has to answer, where it named itself as the source.
        bootstrap: The address is that of a bootstrap server, which knows the service's.
        rank: Data-parallel rank of the prefill engine, for its bootstrap server.
        block_ids: Read these instead of the blocks that the offer names.
        prompt: Ask the peer to compute it first; empty if it was asked already.
        lent: What of that prompt the peer may read from us.
        push: Prefill writes; else we read.
        by_layer: A push goes layer by layer, while prefill computes; else after it.
        context: A push carries a context (context.py), without which it is not complete. An
            offer that we read has one if prefill gave it one.
        context_needed: A push by a prefill that has no contexts fails; else it goes without.
        ranks: Of prefill, which this worker of it holds, where others are asked themselves
            (workers.py); empty if it has to have all that we need.
    """

    host: str
    port: int
    key: str
    wait_seconds: float
    engine_id: str = ""
    peer: str = ""
    bootstrap: bool = False
    rank: int = 0
    block_ids: tuple[int, ...] | None = None
    prompt: tuple[int, ...] = ()
    lent: Lent | None = None
    push: bool = False
    by_layer: bool = True
    context: bool = False
    context_needed: bool = True
    ranks: Ranks = ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenSource(Source):
    """Pages of a prompt whose first token came with the call that names them."""

    first_token: int


@dataclass(frozen=True, slots=True)
class Target:
    """Pages to fill: the first `skip` blocks of them are good already."""

    block_ids: Sequence[int]
    tokens: int
    skip: int


@dataclass(frozen=True, slots=True)
class Moved:
    """
    Attributes:
        bytes: Of pages.
    """

    bytes: int
    context: Context = NOTHING
