"""Workers of an engine: processes that hold some of its ranks each, and serve what they hold.

    P: worker A (rank 0)      D: worker C (rank 0)      D's C asks A; it is referred to B as well
       worker B (rank 1)                                a conversation with each, a load of both

    P: worker A (rank 0)      D: worker C (rank 0)      C and E both ask A, for a share each;
                                 worker E (rank 1)      A's pages go when both have theirs

Which rank exchanges what with which is the plan's business (shards.py), and all sides find
the same. A key is served once to each rank of D that takes something of it; a worker of P
that none takes from (another holds the same heads) is released by D's first worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pdgate.transfer.messenger import shards
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks

MAX_HOST_LETTERS: Final = 255


class MessengerWorker(msgspec.Struct, frozen=True):
    """
    Attributes:
        host, port: Of its KV service.
        ranks: By the number of their region in the whole engine.
        peer: Name of its process, which it proves.
    """

    host: str
    port: int
    ranks: tuple[int, ...]
    peer: str = ""


class HeldElsewhere(HandOverError):
    """What was asked for lies with several workers, which are to be asked themselves."""

    def __init__(
        self, engine_id: str, shape: PageShape, workers: Sequence[MessengerWorker]
    ) -> None:
        # Only where it is no answer: a worker that we were sent to sends us on.
        super().__init__(Why.BROKEN, f"it names {len(workers)} workers once more")
        self.engine_id = engine_id
        self.shape = shape
        self.workers = workers


@dataclass(frozen=True, slots=True)
class KeyShare:
    """What one conversation takes of a key.

    Attributes:
        ranks: Of D, that take something here by this conversation.
        of: All of D's ranks that take something here; empty where it only lets go.
    """

    ranks: frozenset[int]
    of: frozenset[int]


WHOLE: Final = KeyShare(frozenset({0}), frozenset({0}))


def is_first(ranks: Ranks) -> bool:
    """Whether this worker speaks for its engine where one has to."""
    return ranks == ALL or 0 in ranks


def check(ranks: Ranks, shape: PageShape) -> None:
    """Raises HandOverError."""
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < shape.ranks for rank in ranks):
        raise HandOverError(Why.WRONG_SHAPE, f"ranks {list(ranks)} of {shape.ranks}")


def share(
    ours: PageShape, held: Ranks, theirs: PageShape, asking: Ranks, key: str, *, only_here: bool
) -> KeyShare | None:
    """What workers of D with the ranks `asking` take from us, who hold `held`.

    None if they have to ask other workers too, unless they say that they do. Raises HandOverError.
    """
    check(asking, theirs)
    pairs = shards.pairs(ours, theirs, key)
    here, wanted = shards.numbers(held, ours), shards.numbers(asking, theirs)
    sources = {shards.region(ours, pair.link.source) for pair in pairs}
    taken = {
        (shards.region(ours, pair.link.source), shards.region(theirs, pair.link.destination))
        for pair in pairs
    }
    if not only_here:
        beyond = any(to in wanted and source not in here for source, to in taken)
        idle = is_first(asking) and not shards.numbers(ALL, ours) - here <= sources
        if beyond or idle:
            return None
    takes = frozenset(to for source, to in taken if source in here)
    if takes and not takes & wanted:
        raise HandOverError(Why.WRONG_SHAPE, f"ranks {list(asking)} take nothing here")
    return KeyShare(takes & wanted, takes)


def to_ask(
    said: HeldElsewhere, ours: PageShape, held: Ranks, key: str
) -> tuple[list[MessengerWorker], list[MessengerWorker]]:
    """Workers of P that we take something from, and those that no worker of ours does.

    Nothing in `said` has been checked. Raises HandOverError.
    """
    shards.meet(ours, said.shape)
    known: set[int] = set()
    for worker in said.workers:
        check(worker.ranks, said.shape)
        if known & set(worker.ranks) or not worker.ranks:
            raise HandOverError(Why.BROKEN, f"workers with the ranks {list(worker.ranks)} twice")
        if not 0 < worker.port < 65536 or not 0 < len(worker.host) <= MAX_HOST_LETTERS:
            raise HandOverError(Why.BROKEN, f"a worker at port {worker.port}")
        known |= set(worker.ranks)
    if known != shards.numbers(ALL, said.shape):
        raise HandOverError(Why.BROKEN, f"workers for {len(known)} of {said.shape.ranks} ranks")
    wanted = shards.numbers(held, ours)
    pairs = shards.pairs(said.shape, ours, key)
    sources = {shards.region(said.shape, pair.link.source) for pair in pairs}
    for_us = {
        shards.region(said.shape, pair.link.source)
        for pair in pairs
        if shards.region(ours, pair.link.destination) in wanted
    }
    ask = [worker for worker in said.workers if for_us & set(worker.ranks)]
    idle = [worker for worker in said.workers if not sources & set(worker.ranks)]
    return ask, idle
