"""Links from blocks of prompts, as the prefix index counts them, to places in token blocks.

The index knows prompts by their bytes, engines by tokens. Once the tokens of a prompt are known,
each block of bytes is tied to the token block in which it ends:

    bytes    |----- a ------|----- b ------|----- c ------|-- d
    tokens   | k0 | k1 | k2 | k3 | k4 | k5 | k6 | k7 | k8 | k
                       |         |                   |
    Part          a ---'    b ---'              c ---'

so k2 stored means that a can be read, and k4 removed that b cannot. A key may have several parts:
texts that differ, of which the engine makes the same tokens.

Bounded: parts that were tied longest ago go first. What an engine then says of their tokens
changes nothing any more until the prompt comes again.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MAX_KEYS: Final = 250_000
"""About 100 MB, and 30 million tokens of different prompts."""

MOST_PARTS: Final = 4
"""Of one key."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """
    Attributes:
        blocks: Of the whole prompt, as the index counts.
        first, end: Those that end in this token block are blocks[first:end].
        model: Whose prompt it is, as the call named it.
    """

    blocks: Sequence[int]
    first: int
    end: int
    model: str | None = None

    @property
    def before(self) -> Sequence[int]:
        """The prompt up to here."""
        return self.blocks[: self.end]


class EventLinks:
    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._parts: dict[int, tuple[PromptPart, ...]] = {}
        self._tied: dict[int, None] = {}
        # Of all prompts that were tied: no more than engines serve, as calls of others come to no engine.
        self._models: set[str | None] = set()

    def __len__(self) -> int:
        return len(self._parts)

    def knows(self, blocks: Sequence[int]) -> bool:
        """Whether this very prompt has been tied."""
        return blocks[-1] in self._tied

    def untie(self) -> None:
        """No prompt counts as known, so that what engines have of each is looked up again."""
        self._tied.clear()

    def drop(self, model: str) -> Collection[Sequence[int]]:
        """Forget all ties of a model's prompts, as their keys are wrong. Returns one of those that begin alike."""
        dropped: dict[int, Sequence[int]] = {}
        if model not in self._models:
            return dropped.values()
        self._models.discard(model)
        for key, parts in list(self._parts.items()):
            kept = tuple(part for part in parts if part.model != model)
            if len(kept) == len(parts):
                continue
            dropped.update((part.blocks[0], part.blocks) for part in parts if part.model == model)
            if kept:
                self._parts[key] = kept
            else:
                del self._parts[key]
        self.untie()
        return dropped.values()

    def at(self, key: int) -> Sequence[PromptPart]:
        return self._parts.get(key, ())

    def tie(
        self,
        blocks: Sequence[int],
        ends: Sequence[int],
        keys: Sequence[int],
        block_tokens: int,
        model: str | None = None,
    ) -> Sequence[tuple[int, PromptPart]]:
        """Key -> part, from the prompt's beginning on.

        Args:
            ends: For each block, how many tokens there are up to its end.
            keys: Of the prompt's whole token blocks.
        """
        tied = list(_parts(blocks, ends, keys, block_tokens, model))
        self._models.add(model)
        for key, part in tied:
            last = blocks[part.end - 1]
            others = self._parts.pop(key, ())
            kept = [one for one in others if one.blocks[one.end - 1] != last]
            self._parts[key] = (part, *kept[: MOST_PARTS - 1])
        self._tied.pop(blocks[-1], None)
        self._tied[blocks[-1]] = None
        while len(self._parts) > self._max_keys:
            del self._parts[next(iter(self._parts))]
        while len(self._tied) > self._max_keys:
            del self._tied[next(iter(self._tied))]
        return tied


def _parts(
    blocks: Sequence[int],
    ends: Sequence[int],
    keys: Sequence[int],
    block_tokens: int,
    model: str | None,
) -> Iterator[tuple[int, PromptPart]]:
    first = 0
    while first < len(blocks):
        place = max(ends[first] - 1, 0) // block_tokens
        if place >= len(keys):
            return
        end = first + 1
        while end < len(blocks) and max(ends[end] - 1, 0) // block_tokens == place:
            end += 1
        yield keys[place], PromptPart(blocks, first, end, model)
        first = end
