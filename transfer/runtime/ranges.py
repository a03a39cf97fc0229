"""Lists of ranges: checked, merged where they touch on both sides, and split for several connections.

A list may have thousands of ranges, one for each page, and the caller waits for this: so both
are done in one pass, and what comes out are plain tuples.
"""

from collections.abc import Iterable, Sequence

from pdgate.transfer.base import OutOfBounds, Range

Piece = tuple[int, int, int]
"""Local offset, remote offset, bytes: a range that has been checked and merged."""


def pieces(ranges: Iterable[Range], local_bytes: int, remote_bytes: int) -> list[Piece]:
    """Joins neighbours in the list that go on where the one before ended, on both sides.

    The order stays; empty ranges vanish. Raises OutOfBounds, naming the first range that does
    not fit.
    """
    found: list[Piece] = []
    start = ends_local = ends_remote = length = 0
    for one in ranges:
        local, remote, more = one.local, one.remote, one.length
        if local < 0 or more < 0 or local + more > local_bytes:
            raise OutOfBounds(f"{one} is outside our {local_bytes} bytes")
        if remote < 0 or remote + more > remote_bytes:
            raise OutOfBounds(f"{one} is outside the peer's {remote_bytes} bytes")
        if not more:
            continue
        if length and local == ends_local and remote == ends_remote:
            length += more
        else:
            if length:
                found.append((start, ends_remote - length, length))
            start, length = local, more
        ends_local, ends_remote = local + more, remote + more
    if length:
        found.append((start, ends_remote - length, length))
    return found


def total(found: Sequence[Piece]) -> int:
    """Bytes."""
    return sum([one[2] for one in found])


def split(pieces: Sequence[Piece], most: int, least_bytes: int) -> list[list[Piece]]:
    """At most `most` shares of nearly the same size, none below `least_bytes`; in order.

    One share if there is too little for two. A piece is cut where a share is full.
    """
    whole = sum([length for _, _, length in pieces])
    shares = max(1, min(most, whole // least_bytes))
    if shares == 1:
        return [list(pieces)]
    found: list[list[Piece]] = []
    share: list[Piece] = []
    passed = 0
    for local, remote, length in pieces:
        done = 0
        while done < length:
            # Up to the end of this share, as a part of the whole: no rest adds up.
            end = whole * (len(found) + 1) // shares
            size = min(length - done, end - passed)
            share.append((local + done, remote + done, size))
            done += size
            passed += size
            if passed == end:
                found.append(share)
                share = []
    return found
