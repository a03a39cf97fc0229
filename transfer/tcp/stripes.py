"""Shares of one transfer for several connections."""

from collections.abc import Sequence

from pdgate.transfer.kit.ranges import Piece


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
