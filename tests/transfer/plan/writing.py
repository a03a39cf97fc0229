"""What a source writes, said as plainly as it can be: by whom counts are checked."""

from collections.abc import Iterator

from pdgate.transfer.plan import count
from pdgate.transfer.plan.count import Chunks, Rhythm
from pdgate.transfer.plan.layout import KvLayout, Rank
from pdgate.transfer.plan.links import Link, links_to, spread


def writes(link: Link, tokens: range, rhythm: Rhythm) -> Iterator[tuple[range, range]]:
    """(tokens, layers) of each write of one link."""
    for chunk in Chunks(tokens, rhythm.chunk_tokens):
        if rhythm.by_layer:
            for layer in link.layers:
                yield chunk, range(layer, layer + 1)
        else:
            yield chunk, link.layers


def expected(
    source: KvLayout, destination: KvLayout, to: Rank, tokens: range, rhythm: Rhythm
) -> int:
    """What a destination rank waits for: the same, whichever copies of a head are chosen."""
    return sum(
        count.writes(link.layers, tokens, rhythm)
        for link in links_to(source, 0, destination, to, spread("another key"))
    )
