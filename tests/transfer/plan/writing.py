"""What a source writes, said as plainly as it can be: by whom counts are checked."""

from collections.abc import Iterator

from pdgate.transfer.plan.count import Rhythm, chunks
from pdgate.transfer.plan.links import Link


def writes(link: Link, tokens: range, rhythm: Rhythm) -> Iterator[tuple[range, range]]:
    """(tokens, layers) of each write of one link."""
    for chunk in chunks(tokens, rhythm.chunk_tokens):
        if rhythm.by_layer:
            for layer in link.layers:
                yield chunk, range(layer, layer + 1)
        else:
            yield chunk, link.layers
