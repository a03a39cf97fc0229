"""Which instance has which blocks, as engines report it: block by block, stored and removed.

A table from block to owners. Engines name what they remove, so nothing has to be guessed, and
nothing has an order. Sets of owners are shared by all blocks that have the same; a prompt's
blocks mostly do, so walking along it compares one object with itself.
"""

from collections.abc import Iterable, Sequence
from typing import Final

Owners = frozenset[str]

_NOBODY: Final[Owners] = frozenset()

PAIR_BYTES: Final = 200
"""Of a block that an instance has: its place in the table and among the instance's; measured."""

MOST_SETS: Final = 4096
"""Kept for sharing; then those in use are shared anew."""


class Reported:
    """
    Attributes:
        bytes: That it takes, estimated: as if no block were at two instances.
        refused: Blocks that were not taken in for want of room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._most_pairs = max_bytes // PAIR_BYTES
        self._owners: dict[int, Owners] = {}
        self._of: dict[str, set[int]] = {}
        self._shared: dict[Owners, Owners] = {}
        self._pairs = 0
        self.refused = 0

    @property
    def bytes(self) -> int:
        return self._pairs * PAIR_BYTES

    @property
    def blocks(self) -> int:
        return len(self._owners)

    def matched(self, blocks: Sequence[int]) -> list[tuple[int, Owners]]:
        """How many blocks of this prompt who has, from least to most; all who have more are in
        each."""
        if not self._owners:
            return []
        found = []
        find, before, owners = self._owners.get, _NOBODY, _NOBODY
        at = 0
        for block in blocks:
            theirs = find(block, _NOBODY)
            if theirs is not before or not at:
                left = owners & theirs if at else theirs
                if at and len(left) < len(owners):
                    found.append((at, owners))
                if not left:
                    return found
                before, owners = theirs, left
            at += 1
        if at:
            found.append((at, owners))
        return found

    def stored(self, instance_id: str, blocks: Iterable[int]) -> None:
        theirs = self._of.setdefault(instance_id, set())
        owners = self._owners
        for block in blocks:
            if block in theirs:
                continue
            if self._pairs >= self._most_pairs:
                self.refused += 1
                continue
            theirs.add(block)
            owners[block] = self._share(owners.get(block, _NOBODY) | {instance_id})
            self._pairs += 1

    def removed(self, instance_id: str, blocks: Iterable[int]) -> None:
        theirs = self._of.get(instance_id)
        if theirs is None:
            return
        for block in blocks:
            if block in theirs:
                theirs.remove(block)
                self._disown(instance_id, block)

    def forget(self, instance_id: str) -> None:
        for block in self._of.pop(instance_id, ()):
            self._disown(instance_id, block)

    def clear(self) -> None:
        for instance_id in list(self._of):
            self.forget(instance_id)

    def known(self, instance_id: str) -> int:
        return len(self._of.get(instance_id, ()))

    def _disown(self, instance_id: str, block: int) -> None:
        left = self._owners[block] - {instance_id}
        if left:
            self._owners[block] = self._share(left)
        else:
            del self._owners[block]
        self._pairs -= 1

    def _share(self, owners: Owners) -> Owners:
        shared = self._shared.get(owners)
        if shared is None:
            if len(self._shared) >= MOST_SETS:
                self._shared.clear()
            shared = self._shared[owners] = owners
        return shared
