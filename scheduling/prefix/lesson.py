"""What the index was told when a leg was reserved, until it is certain or taken back."""

from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.prefix.index import PrefixIndex


class Lesson:
    """A prompt is on its way to an instance, which is taken to have it from now on.

    From now on, and not once it has: of calls that come at once and begin alike, all would go to
    different engines otherwise, and each would read the same.

    Attributes:
        cached_tokens: Of the prompt, what the instance had before.
    """

    __slots__ = ("_call", "_index", "_instance_id", "_reads", "cached_tokens")

    def __init__(self, index: PrefixIndex, call: Call, at: Candidate, *, reads: bool) -> None:
        """`reads`: it computes the prompt, instead of taking over its KV."""
        self._index = index
        self._call = call
        self._instance_id = at.instance.id
        self._reads = reads
        index.capacity(self._instance_id, at.beyond.kv_capacity)
        self.cached_tokens = index.routed(call, self._instance_id, reads=reads)

    @classmethod
    def of(cls, index: PrefixIndex, call: Call, at: Candidate, reads: bool) -> "Lesson | None":
        """None where there is nothing to be learnt, as the prompt is shorter than a block."""
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
