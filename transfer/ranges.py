"""Lists of ranges: checked, and merged where they touch on both sides."""

from collections.abc import Iterable, Sequence

from pdgate.transfer.base import OutOfBounds, Range


def inside(offset: int, length: int, total: int) -> bool:
    return offset >= 0 and length >= 0 and offset + length <= total


def check(ranges: Sequence[Range], local_bytes: int, remote_bytes: int) -> None:
    """Raises OutOfBounds, naming the first range that does not fit."""
    for one in ranges:
        if not inside(one.local, one.length, local_bytes):
            raise OutOfBounds(f"{one} is outside our {local_bytes} bytes")
        if not inside(one.remote, one.length, remote_bytes):
            raise OutOfBounds(f"{one} is outside the peer's {remote_bytes} bytes")


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Joins neighbours in the list that go on where the one before ended, on both sides.

    The order stays; empty ranges vanish.
    """
    merged: list[Range] = []
    for one in ranges:
        if one.length == 0:
            continue
        if merged:
            last = merged[-1]
            end = (last.local + last.length, last.remote + last.length)
            if end == (one.local, one.remote):
                merged[-1] = Range(last.local, last.remote, last.length + one.length)
                continue
        merged.append(one)
    return merged
