"""KV cache of one engine: blocks that calls hold, and what is kept of earlier ones.

    capacity = held by calls + kept for no call in particular + empty

A full block of a prompt that has been computed can be found by its hash, and is shared. When
no call holds it, it is kept until its place is needed, the one unused longest first, and of one
prompt the last first. That is how vLLM and SGLang keep prefixes.
"""

from collections import OrderedDict
from collections.abc import Sequence

from pdgate.lab.simulator.trace import BLOCK_TOKENS


class CallShare:
    """What one call holds.

    Attributes:
        found: Tokens of its prompt that were there when it came.
        filled: Blocks at the front of its prompt whose KV is complete.
    """

    __slots__ = ("blocks", "filled", "found", "own", "shared")

    def __init__(self, blocks: Sequence[int], shared: int, own: int) -> None:
        self.blocks = blocks
        self.found = shared * BLOCK_TOKENS
        self.filled = shared
        self.shared: list[int] = list(blocks[:shared])
        self.own = own
        """Tokens that no other call can find: not full, an answer, or a double of a known block."""


class KvCache:
    """
    Attributes:
        held_tokens: By calls; what two share counts once.
    """

    __slots__ = ("_holders", "_unheld", "capacity_tokens", "held_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.held_tokens = 0
        self._holders: dict[int, int] = {}
        self._unheld: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that can be found."""
        return len(self._holders) + len(self._unheld)

    def find(self, blocks: Sequence[int]) -> int:
        """How many blocks of the prompt are there, from its front."""
        holders, unheld = self._holders, self._unheld
        for number, block in enumerate(blocks):
            if block not in holders and block not in unheld:
                return number
        return len(blocks)

    def take(self, blocks: Sequence[int], tokens: int) -> CallShare | None:
        """Room for so many tokens, with what is found of them; None if there is too little.

        The last token is never found, as the call has to compute what comes after it.
        """
        shared = min(self.find(blocks), (tokens - 1) // BLOCK_TOKENS)
        own = tokens - shared * BLOCK_TOKENS
        unheld = self._unheld
        revived = sum(block in unheld for block in blocks[:shared]) * BLOCK_TOKENS
        if self.held_tokens + revived + own > self.capacity_tokens:
            return None
        for block in blocks[:shared]:
            self._hold(block)
        self.held_tokens += own
        self._evict()
        return CallShare(blocks, shared, own)

    def grow(self, tokens: int) -> None:
        """Grow by what calls have answered; `room` says how much that may be."""
        self.held_tokens += tokens
        self._evict()

    @property
    def room(self) -> int:
        """Tokens that no call holds."""
        return self.capacity_tokens - self.held_tokens

    def fill(self, share: CallShare, tokens: int) -> None:
        """The KV of its first tokens is complete."""
        full = min(tokens // BLOCK_TOKENS, len(share.blocks))
        for block in share.blocks[share.filled : full]:
            if block in self._holders or block in self._unheld:
                # Another computed the same meanwhile: this one's stays its own.
                continue
            self._holders[block] = 1
            share.shared.append(block)
            share.own -= BLOCK_TOKENS
        share.filled = max(share.filled, full)

    def release(self, share: CallShare, answered_tokens: int = 0) -> None:
        """`answered_tokens`: by which it has grown."""
        self.held_tokens -= share.own + answered_tokens
        holders, unheld = self._holders, self._unheld
        for block in reversed(share.shared):
            left = holders[block] - 1
            if left:
                holders[block] = left
            else:
                del holders[block]
                unheld[block] = None
                self.held_tokens -= BLOCK_TOKENS
        self._evict()

    def _hold(self, block: int) -> None:
        if block in self._unheld:
            del self._unheld[block]
            self._holders[block] = 1
            self.held_tokens += BLOCK_TOKENS
        else:
            self._holders[block] += 1

    def _evict(self) -> None:
        spare = (self.capacity_tokens - self.held_tokens) // BLOCK_TOKENS
        while len(self._unheld) > spare:
            self._unheld.popitem(last=False)
