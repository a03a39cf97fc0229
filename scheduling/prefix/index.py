"""Prefix index: which instance has which beginnings of prompts in its KV cache.

    routed, unrouted     what calls were sent there: a guess, right a moment later
    stored, lost         what engines say of it, where they do
    cleared, forget      what a process takes with it

A `PrefixUpdate` notes what a leg is sent, and takes it back if that comes to nothing.

All counts here are in tokens, on the scale of the call's prompt_tokens: of that many, so many
need not be computed again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.prefix.blocks import BLOCK_TOKENS, BlocksOf, blocks_of
from pdgate.scheduling.prefix.tree import Tree

MAX_BYTES: Final = 256 * 2**20

NOTHING: Final[dict[str, int]] = {}
"""Never written to."""


class PrefixIndex:
    """
    Attributes:
        read_tokens: Of all prompts that an engine was to read.
        cached_tokens: Of these, what that engine had already, as expected.
        told: Each is called with every update: instance, blocks of a prompt, and how many of them it
            has after all; None for all of them.
    """

    def __init__(
        self,
        source: BlocksOf = blocks_of,
        *,
        block_tokens: int = BLOCK_TOKENS,
        max_bytes: int = MAX_BYTES,
        kv_tokens: int | None = None,
    ) -> None:
        """
        Args:
            source: What makes blocks of a call that has none yet; they are kept as long as the call.
            block_tokens: Of a block of the source, on the scale of calls' prompt_tokens.
            kv_tokens: That fit into the cache of an engine which does not say so itself.
        """
        self._source = source
        self._block_tokens = block_tokens
        self._kv_tokens = kv_tokens
        self._tree = Tree(max_bytes)
        self._asked: Sequence[int] | None = None
        self._answer: dict[str, int] = {}
        self.read_tokens = 0
        self.cached_tokens = 0
        self.told: list[Callable[[str, Sequence[int], int | None], None]] = []

    @property
    def bytes(self) -> int:
        return self._tree.bytes

    @property
    def blocks(self) -> int:
        return self._tree.blocks

    @property
    def evictions(self) -> int:
        """Blocks of instances that were forgotten for want of room, theirs or ours."""
        return self._tree.evictions

    def blocks_of(self, call: Call) -> Sequence[int]:
        """None of them for a prompt that is too short for any instance to have some of it."""
        blocks = call.blocks
        return self._source(call) if blocks is None else blocks

    def matched(self, call: Call) -> Mapping[str, int]:
        """Instance id -> tokens of the call's prompt that it has; without those that have none.

        Valid until the index is changed.
        """
        blocks = call.blocks
        if blocks is None:
            # As a method it would be looked up anew each time.
            source = self._source
            blocks = source(call)
        if not blocks:
            return NOTHING
        # All readers of one call ask in a row.
        if blocks is self._asked:
            return self._answer
        found: dict[str, int] = {}
        for count, owners in self._tree.matched(blocks):
            found.update(dict.fromkeys(owners, self._tokens(count, call)))
        self._asked, self._answer = blocks, found
        return found

    def cached_share(self, call: Call, endpoint: Endpoint) -> float:
        """Of the call's prompt, how much this one has: 0..1."""
        cached = self.matched(call).get(endpoint.instance.id, 0)
        return cached / call.prompt_tokens if cached else 0.0

    def routed(self, call: Call, instance_id: str, *, reads: bool = True) -> int:
        """The instance is to read the call's prompt, or else to take over its KV.

        Returns how many tokens of it it had already.
        """
        answer = self.matched(call)
        had, blocks = answer.get(instance_id, 0), self.blocks_of(call)
        if reads:
            self.read_tokens += call.prompt_tokens
            self.cached_tokens += had
        if blocks:
            evictions = self._tree.evictions
            self._tree.learn(instance_id, blocks)
            for tell in self.told:
                tell(instance_id, blocks, None)
            if self._tree.evictions == evictions:
                # Nothing else has changed for this call, about which the next leg will ask.
                self._answer[instance_id] = self._tokens(len(blocks), call)
            else:
                self._asked = None
        return had

    def unrouted(self, call: Call, instance_id: str, had: int, *, reads: bool = True) -> None:
        """It does not, so it has no more tokens of it than it had before."""
        if reads:
            self.read_tokens -= call.prompt_tokens
            self.cached_tokens -= had
        blocks, kept = self.blocks_of(call), had // self._block_tokens
        self._asked = None
        self._tree.unlearn(instance_id, blocks, kept)
        if blocks:
            for tell in self.told:
                tell(instance_id, blocks, kept)

    def hear(self, instance_id: str, blocks: Sequence[int], kept: int | None) -> None:
        """Of an update of another process, as it was there."""
        if kept is None:
            self.stored(instance_id, blocks)
        else:
            self.lost(instance_id, blocks, kept)

    def stored(self, instance_id: str, blocks: Sequence[int], first: int = 0) -> None:
        """The engine says that it has blocks[first:] of this beginning of a prompt.

        They count if it has those before as well, without which they are of no use.
        """
        if self._tree.holds(instance_id, blocks, first):
            self._asked = None
            self._tree.learn(instance_id, blocks)

    def lost(self, instance_id: str, blocks: Sequence[int], kept: int) -> None:
        """The engine says that of this prompt it has no more than the first `kept`."""
        self._asked = None
        self._tree.unlearn(instance_id, blocks, kept)

    def cleared(self, instance_id: str) -> None:
        """The instance has emptied its cache, or is another process now."""
        self._asked = None
        self._tree.forget(instance_id)

    def forget(self, instance_id: str) -> None:
        """The instance is gone for good."""
        self.cleared(instance_id)
        self._tree.limit(instance_id, None)

    def clear(self) -> None:
        """Everything, of all instances."""
        self._asked = None
        self._tree.clear()

    def capacity(self, instance_id: str, tokens: int | None) -> None:
        """So many tokens fit into its cache; None where it does not say."""
        tokens = tokens or self._kv_tokens
        blocks = None if tokens is None else tokens // self._block_tokens
        if self._tree.limit(instance_id, blocks):
            self._asked = None

    def _tokens(self, blocks: int, call: Call) -> int:
        # The last block of tools is short, and prompt_tokens an estimate.
        tokens = blocks * self._block_tokens
        if tokens > call.prompt_tokens:
            return call.prompt_tokens
        return tokens


class PrefixUpdate:
    """What the index was given when a leg was reserved, until it is certain or taken back.

    A prompt is on its way to an instance, which is taken to have it from now on.

    From now on, and not once it has: of calls that come at once and begin alike, all would go to
    different engines otherwise, and each would read the same.

    Attributes:
        cached_tokens: Of the prompt, what the instance had before.
    """

    __slots__ = ("_call", "_index", "_instance_id", "_reads", "cached_tokens")

    def __init__(self, index: PrefixIndex, call: Call, at: Endpoint, *, reads: bool) -> None:
        """`reads`: it computes the prompt, instead of taking over its KV."""
        self._index = index
        self._call = call
        self._instance_id = at.instance.id
        self._reads = reads
        index.capacity(self._instance_id, at.beyond.kv_capacity)
        self.cached_tokens = index.routed(call, self._instance_id, reads=reads)

    @classmethod
    def of(cls, index: PrefixIndex, call: Call, at: Endpoint, reads: bool) -> "PrefixUpdate | None":
        """None where there is nothing to note, as the prompt is shorter than a block."""
        blocks = call.blocks
        if blocks is None:
            blocks = index.blocks_of(call)
        if blocks:
            return cls(index, call, at, reads=reads)
        if reads:
            index.read_tokens += call.prompt_tokens
        return None

    def take_back(self) -> None:
        """The prompt has not come to be there after all."""
        self._index.unrouted(self._call, self._instance_id, self.cached_tokens, reads=self._reads)
