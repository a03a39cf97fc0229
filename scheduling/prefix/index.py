"""Which instance has which beginnings of prompts in its KV cache."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.prefix.blocks import BLOCK_TOKENS, BlocksOf, blocks_of

MAX_BYTES: Final = 256 * 2**20
BYTES_PER_BLOCK: Final = 300


class PrefixIndex:
    """
    Attributes:
        evictions: Blocks that were forgotten for want of room.
    """

    def __init__(
        self,
        source: BlocksOf = blocks_of,
        *,
        block_tokens: int = BLOCK_TOKENS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Args:
            block_tokens: Of a block of the source, on the scale of calls' prompt_tokens.
        """
        self._source = source
        self._block_tokens = block_tokens
        self._max_blocks = max_bytes // BYTES_PER_BLOCK
        self._of: dict[str, OrderedDict[int, None]] = {}
        self._capacity: dict[str, int] = {}
        self._blocks = 0
        self.evictions = 0

    def matched(self, call: Call) -> Mapping[str, int]:
        """Instance id -> tokens of the call's prompt that it has; without those that have none.

        On the scale of the call's prompt_tokens, and never more than those.
        """
        blocks = self._source(call)
        matched = {}
        for instance_id, theirs in self._of.items():
            count = 0
            for block in blocks:
                if block not in theirs:
                    break
                count += 1
            if count:
                matched[instance_id] = min(count * self._block_tokens, call.prompt_tokens)
        return matched

    def share(self, call: Call, candidate: Candidate) -> float:
        """Of the call's prompt, how much this one has: 0..1."""
        cached = self.matched(call).get(candidate.instance.id, 0)
        return cached / call.prompt_tokens if cached else 0.0

    def routed(self, call: Call, instance_id: str) -> None:
        """The instance is to read the call's prompt, or to take over its KV."""
        self.stored(instance_id, self._source(call))

    def stored(self, instance_id: str, blocks: Sequence[int]) -> None:
        """The instance has this beginning of a prompt, from its first block on."""
        theirs = self._of.setdefault(instance_id, OrderedDict())
        self._blocks -= len(theirs)
        for block in reversed(blocks):
            theirs[block] = None
            theirs.move_to_end(block)
        most = self._capacity.get(instance_id)
        while most is not None and len(theirs) > most:
            theirs.popitem(last=False)
            self.evictions += 1
        self._blocks += len(theirs)
        while self._blocks > self._max_blocks:
            most_known = max(self._of.values(), key=len)
            most_known.popitem(last=False)
            self._blocks -= 1
            self.evictions += 1

    def removed(self, instance_id: str, blocks: Sequence[int]) -> None:
        """The instance has no longer any of these."""
        theirs = self._of.get(instance_id, OrderedDict())
        for block in blocks:
            if theirs.pop(block, _MISSING) is None:
                self._blocks -= 1

    def cleared(self, instance_id: str) -> None:
        """The instance has emptied its cache."""
        self._blocks -= len(self._of.pop(instance_id, ()))

    def forget(self, instance_id: str) -> None:
        """The instance is gone, or is another process now."""
        self.cleared(instance_id)
        self._capacity.pop(instance_id, None)

    def capacity(self, instance_id: str, tokens: int | None) -> None:
        """So many tokens fit into its cache; None for what is not known."""
        if tokens is None:
            self._capacity.pop(instance_id, None)
        else:
            self._capacity[instance_id] = tokens // self._block_tokens


_MISSING: Final = object()
