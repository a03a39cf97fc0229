"""Links: ranks that meet in a transfer, and the heads and layers that they exchange.

    source tp 2      destination tp 4        source tp 4, one head      destination tp 2
    heads 0-3  --->  heads 0-1               0 \\                        0
               \\-->  heads 2-3               0  >- any one of them ---> 0
    heads 4-7  --->  heads 4-5               0  >- any one of them ---> 0
               \\-->  heads 6-7               0 /

Every head and layer of a destination rank comes from exactly one source rank. Where
several hold the same heads, a choice spreads the load over their network cards. The ranks
of an engine are processes that do not talk to each other, so each decides alone and all
must decide alike: a choice depends on nothing but its arguments.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from pdgate.transfer.plan.layout import KvLayout, Rank

Choose = Callable[[Rank, range], int]
"""destination, source ranks (tp) that hold the same heads -> one of these."""


@dataclass(frozen=True, slots=True)
class Link:
    """`heads` and `layers` count through the whole model."""

    source: Rank
    destination: Rank
    heads: range
    layers: range


def spread(key: str) -> Choose:
    """A random choice that all who know the key make alike; say, the transfer's id."""

    def choose(destination: Rank, holders: range) -> int:
        said = f"{key}|{destination.stage}|{destination.tp}|{holders.start}"
        digest = blake2b(said.encode(errors="surrogatepass"), digest_size=8).digest()
        return holders[int.from_bytes(digest) % len(holders)]

    return choose


def links_to(
    source: KvLayout, source_dp: int, destination: KvLayout, to: Rank, choose: Choose
) -> Iterator[Link]:
    """All that one destination rank gets. Both layouts must `agree`. Raises IndexError for a
    data-parallel rank that the source does not have.
    """
    if not 0 <= source_dp < source.dp:
        raise IndexError(f"data-parallel rank {source_dp} of {source.dp}")
    wanted = destination.heads(to)
    for stage in range(len(source.stages)):
        layers = common(source.stage_layers(stage), destination.layers_of(to))
        if not layers:
            continue
        for part in parts_of(source, wanted):
            heads = common(source.part_heads(part), wanted)
            holders = source.part_holders(part)
            tp = choose(to, holders) if len(holders) > 1 else holders[0]
            yield Link(Rank(source_dp, stage, tp), to, heads, layers)


def parts_of(layout: KvLayout, heads: range) -> range:
    """The shares that hold these heads (consecutive, at least one)."""
    return range(heads[0] // layout.rank_heads, heads[-1] // layout.rank_heads + 1)


def common(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))
