"""Where a network cuts bytes: chosen by the bytes themselves, so that a finding repeats."""

from random import Random


def cut(data: bytes) -> list[bytes]:
    """In up to eight pieces, none of them empty; joined they are the data."""
    random = Random(data)
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(8)))
    pieces = (
        data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)
    )
    return [piece for piece in pieces if piece]
