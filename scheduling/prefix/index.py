"""Prefix index: which instance has which beginnings of prompts in its KV cache.

    routed, unrouted     what calls were sent there: a guess, right a moment later
    stored, lost         what engines say of it, where they do; also of what they have in a tier beyond (tiers.py)
    cleared, forget      what a process takes with it

A `PrefixUpdate` notes what a leg is sent, and takes it back if that comes to nothing.

All counts here are in tokens, on the scale of the call's prompt_tokens: of that many, so many
need not be computed again.

A beginning is known by hashes, one for each whole block of bytes of the prompt:

    [{"role":"system","content":"You are ...     what the client sent
    |<--- 512 bytes --->|<--- 512 bytes --->|
    hash of the first   of the first two ...

Each number stands for all that comes before it, so two prompts that have one in common have all
before it in common, and what they share can be found by bisection. Bytes, not tokens: the gateway
does not know the tokenizers, and a tokenizer costs milliseconds where this costs microseconds.
Texts that differ only in how JSON spells them count as different, which costs a hit and nothing
else.

What comes before the prompt in the engine's cache counts as its beginning: the model (an adapter
is a model of its own, or a path), the salt or key that keeps tenants' caches apart, where a prompt that is too long
is cut, and the tools, which chat templates write before the messages.

A conversation's next turn has the bytes of this one up to the bracket that closes the list. So
that bracket is left out, and so is the last block unless it is whole.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from msgspec.structs import force_setattr
from xxhash import xxh3_64_intdigest

from pdgate.protocols.call import BYTES_PER_TOKEN, Call, Raw, encode
from pdgate.protocols.inline_media import MEDIA_BYTES, media_in
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.prefix.tiers import TierPrices, worth
from pdgate.scheduling.prefix.tree import Tree, in_common

BLOCK_BYTES: Final = 512
BLOCK_TOKENS: Final = BLOCK_BYTES // BYTES_PER_TOKEN
"""On the scale of a call's prompt_tokens."""

MOST_BLOCKS: Final = 8192
"""4 MB, or a million tokens: prompts that agree so far are taken for the same."""
_MOST_HASHED: Final = (MOST_BLOCKS + 1) * BLOCK_BYTES

NO_BLOCKS: Final[Sequence[int]] = ()

_BLOCKS: Final = Struct(f"{BLOCK_BYTES}s").iter_unpack
"""Cuts bytes into blocks, in half the time that slices of them take."""

BlocksOf = Callable[[Call], Sequence[int]]
"""The hashes of a call's prompt, 0 <= hash < 2**64, each of all that comes before its end."""

_MODEL: Final = xxh3_64_intdigest(b"model")

_BEFORE: Final = tuple(
    (name, name.encode())
    for name in (
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "extra_key",
        "instructions",
        "lora_path",
        "reasoning",
        "reasoning_effort",
        "system",
        "truncate_prompt_tokens",
        "truncation",
        "truncation_side",
    )
)
"""Fields that change what an engine computes from its first token on, after the model: one may begin elsewhere in the prompt.

Source: vLLM 0.32.0, entrypoints/openai/*/protocol.py; for extra_key and lora_path SGLang 001067f,
srt/managers/io_struct.py (GenerateReqInput)."""

_SELDOM: Final = frozenset(name for name, _ in _BEFORE)

MAX_BYTES: Final = 256 * 2**20

MOST_SENT: Final = 256
"""Prompts that are remembered of an engine beside the tree, while the first of them may still come to nothing."""
FEW_SENT: Final = 16
"""That always are, as another process may take back what it sent before."""

NOTHING: Final[dict[str, int]] = {}
"""Never written to."""


def blocks_of(call: Call) -> Sequence[int]:
    """Made once, when first asked for, and kept with the call and its retries."""
    found = call.blocks
    if found is None:
        found = hashed(call)
        # It is frozen for all readers; this only remembers what follows from it.
        force_setattr(call, "blocks", found)
    return found


def hashed(call: Call) -> Sequence[int]:
    body = call.body
    prompt = body.get("messages")
    if prompt is None:
        prompt = body.get("prompt")
    if prompt is None:
        prompt = body.get("input")
    if prompt is None:
        prompt = body.get("token_ids")
    if prompt is None:
        prompt = body.get("input_ids")
    if prompt is None:
        prompt = body.get("text")
    if prompt is None:
        return NO_BLOCKS
    if "tools" not in body and type(prompt) is Raw and len(prompt) < BLOCK_BYTES:
        # Most calls of many services; there is no whole block in it.
        return NO_BLOCKS
    text, tools = _bytes_of(prompt), body.get("tools")
    if call.has_media:
        text = _shortened(bytes(text))
    model = body.get("model")
    before = 0 if model is None else xxh3_64_intdigest(_bytes_of(model), _MODEL)
    if not _SELDOM.isdisjoint(body):
        for name, mark in _BEFORE:
            field = body.get(name)
            if field is not None:
                before = xxh3_64_intdigest(_bytes_of(field), xxh3_64_intdigest(mark, before))
    blocks: list[int] = []
    if tools is not None:
        # Also its last block, be it short: the messages begin anew behind it.
        before = _hash(before, _bytes_of(tools), blocks, rest=True)
    # What follows is distinguished from tools that end like it.
    before = xxh3_64_intdigest(b"\0", before)
    _hash(before, text[: _end_of(text)], blocks, rest=False)
    return array("Q", blocks)


def _hash(before: int, text: memoryview, blocks: list[int], *, rest: bool) -> int:
    """Adds a hash for each block, seeded with that of all before it; returns the last."""
    whole, room = len(text) // BLOCK_BYTES, MOST_BLOCKS - len(blocks)
    if whole > room:  # noqa: PLR1730 (a fifth of the time of min)
        whole = room
    whole *= BLOCK_BYTES
    digest = xxh3_64_intdigest
    blocks += [before := digest(block, before) for (block,) in _BLOCKS(text[:whole])]
    if rest and whole < len(text) and len(blocks) < MOST_BLOCKS:
        before = digest(text[whole:], before)
        blocks.append(before)
    return before


def _shortened(text: bytes) -> memoryview:
    """With a digest of each medium in its place, as long as it counts in the call's prompt_tokens."""
    pieces: list[bytes | memoryview] = []
    whole, behind, size = memoryview(text), 0, 0
    for begin, end in media_in(text):
        digest = xxh3_64_intdigest(whole[begin:end])
        pieces += (whole[behind:begin], digest.to_bytes(8, "big") * (MEDIA_BYTES // 8))
        size += begin - behind + MEDIA_BYTES
        behind = end
        if size > _MOST_HASHED:
            return memoryview(b"".join(pieces))
    # What is not hashed need not be copied.
    return memoryview(b"".join((*pieces, whole[behind : behind + _MOST_HASHED])))


def _end_of(text: memoryview) -> int:
    """Where what a longer prompt has in common with this one must end."""
    tail = bytes(text[-BLOCK_BYTES:])
    return len(text) - len(tail) + len(tail[:-1].rstrip())


def _bytes_of(field: Any) -> memoryview:
    if isinstance(field, Raw):
        return memoryview(field)
    return memoryview(encode(field))


class SentPrompt:
    """A prompt that was sent to an engine, as one that others may rest on.

    Attributes:
        kept: Blocks of it that the engine has without it: from before, or by others that are remembered.
        open: It may still turn out not to have come there.
        ours: This process sent it.
    """

    __slots__ = ("blocks", "kept", "open", "ours")

    def __init__(self, blocks: Sequence[int], kept: int, ours: bool) -> None:
        self.blocks = blocks
        self.kept = kept
        self.open = ours
        self.ours = ours


class PrefixIndex:
    """
    Attributes:
        read_tokens: Of all prompts that an engine was to read.
        cached_tokens: Of these, what that engine had already, as expected.
        block_tokens: Of each block of a prompt.
        beyond_pages: Tier -> what engines have there of prompts.
        capacities: Instance -> tokens that fit into its cache, as it says; None where it does not say.
        told: Each is called with every update: instance, blocks of a prompt, and how many of them it
            has after all; None for all of them.
        forgot: Each is called with an instance of which nothing is believed any more; None for all of them.
    """

    def __init__(
        self,
        source: BlocksOf = blocks_of,
        *,
        block_tokens: int = BLOCK_TOKENS,
        max_bytes: int = MAX_BYTES,
        kv_tokens: int | None = None,
        prices: TierPrices | None = None,
    ) -> None:
        """
        Args:
            source: What makes blocks of a call that has none yet; they are kept as long as the call.
            block_tokens: Of a block of the source, on the scale of calls' prompt_tokens.
            kv_tokens: That fit into the cache of an engine which does not say so itself.
            prices: Of what engines have in tiers beyond their pages, of which only they tell; each takes as many
                bytes again.
        """
        self._prices = prices or TierPrices()
        self._max_bytes = max_bytes
        self.beyond_pages: dict[str, Tree] = {}
        self._source = source
        self.block_tokens = block_tokens
        self._kv_tokens = kv_tokens
        self._tree = Tree(max_bytes)
        self._sent: dict[str, list[SentPrompt]] = {}
        self.capacities: dict[str, int | None] = {}
        self._asked: Sequence[int] | None = None
        self._answer: dict[str, int] = {}
        self.read_tokens = 0
        self.cached_tokens = 0
        self.told: list[Callable[[str, Sequence[int], int | None], None]] = []
        self.forgot: list[Callable[[str | None], None]] = []

    @property
    def bytes(self) -> int:
        return self._tree.bytes + sum(tree.bytes for tree in self.beyond_pages.values())

    @property
    def blocks(self) -> int:
        return self._tree.blocks

    @property
    def evictions(self) -> int:
        """Blocks of instances that were forgotten for want of room, theirs or ours."""
        return self._tree.evictions

    def blocks_of(self, call: Call) -> Sequence[int]:
        """Return the prompt's blocks; none if it is too short for any instance to have some of it."""
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
        if self.beyond_pages:
            self._add_tiers(found, blocks, call)
        self._asked, self._answer = blocks, found
        return found

    def in_pages(self, call: Call, instance_id: str) -> int | None:
        """Tokens of the prompt that it has in its pages; None if those are all that `matched` counts."""
        if not self.beyond_pages:
            return None
        tokens = 0
        for count, owners in self._tree.matched(self.blocks_of(call)):
            if instance_id in owners:
                tokens = self._tokens(count, call)
        return tokens

    def _add_tiers(self, found: dict[str, int], blocks: Sequence[int], call: Call) -> None:
        """What engines have in tiers counts for what it saves."""
        there: dict[str, list[tuple[float, int]]] = {}
        for tier in sorted(self.beyond_pages, key=self._prices.of):
            price = self._prices.of(tier)
            longest: dict[str, int] = {}
            for count, owners in self.beyond_pages[tier].matched(blocks):
                longest.update(dict.fromkeys(owners, self._tokens(count, call)))
            for name, tokens in longest.items():
                there.setdefault(name, []).append((price, tokens))
        for name, tiers in there.items():
            saved = worth(found.get(name, 0), tiers)
            if saved:
                found[name] = saved

    def cached_share(self, call: Call, endpoint: Endpoint) -> float:
        """Share of the call's prompt that this endpoint has: 0..1."""
        cached = self.matched(call).get(endpoint.instance.id, 0)
        return cached / call.prompt_tokens if cached else 0.0

    def routed(self, call: Call, instance_id: str, *, reads: bool = True) -> int:
        """The instance is to read the call's prompt, or else to take over its KV.

        Returns how many tokens of it it had already.
        """
        had, blocks = self.matched(call).get(instance_id, 0), call.blocks
        if blocks is None:
            blocks = self.blocks_of(call)
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

    def unrouted(
        self,
        call: Call,
        instance_id: str,
        had: int,
        *,
        reads: bool = True,
        kept: int | None = None,
    ) -> None:
        """Undo `routed`: the engine has as many tokens of the prompt as before; or so many blocks, where these are others."""
        if reads:
            self.read_tokens -= call.prompt_tokens
            self.cached_tokens -= had
        if kept is None:
            kept = had // self.block_tokens
        blocks = self.blocks_of(call)
        self._asked = None
        self._tree.unlearn(instance_id, blocks, kept)
        if blocks:
            for tell in self.told:
                tell(instance_id, blocks, kept)

    def sent(self, instance_id: str, one: SentPrompt) -> None:
        """Remember it, for as long as one that was sent before it may come to nothing, and a while."""
        there = self._sent.get(instance_id)
        if there is None:
            self._sent[instance_id] = [one]
            return
        while len(there) >= FEW_SENT and not (there[0].open and len(there) < MOST_SENT):
            del there[0]
        there.append(one)

    def kept_without(self, instance_id: str, one: SentPrompt) -> int:
        """Blocks of this prompt that the engine has if it has not got it: those from before, and those of others.

        What only rested on it is taken from those that came later.
        """
        there = self._sent.get(instance_id)
        kept = one.kept
        if not there:
            return kept
        # Those before it are in what the engine had when it came.
        first = there.index(one) if one in there else -1
        for other in there[first + 1 :]:
            common = _common(one.blocks, other.blocks)
            if other.open and kept < other.kept <= common:
                other.kept = kept
            if common > kept:  # noqa: PLR1730 (a fifth of the time of max)
                kept = common
        if first >= 0:
            del there[first]
        return kept

    def hear(self, instance_id: str, blocks: Sequence[int], kept: int | None) -> None:
        """Hear an update of another process, as it was there."""
        there = self._sent.get(instance_id)
        if kept is None:
            self.stored(instance_id, blocks)
            if there and blocks:
                self.sent(instance_id, SentPrompt(blocks, 0, ours=False))
            return
        if there and blocks:
            kept = self.kept_without(instance_id, _heard(there, blocks, kept))
        self.lost(instance_id, blocks, kept)

    def stored(
        self, instance_id: str, blocks: Sequence[int], first: int = 0, tier: str = ""
    ) -> None:
        """The engine says that it has blocks[first:] of this beginning of a prompt.

        They count if it has those before as well, without which they are of no use. In a tier those before
        may be in its pages; none is named for these.
        """
        tree = self._tree
        if tier:
            if tier not in self.beyond_pages:
                self.beyond_pages[tier] = Tree(self._max_bytes)
            tree = self.beyond_pages[tier]
        if tree.holds(instance_id, blocks, first) or (
            tier and self._tree.holds(instance_id, blocks, first)
        ):
            self._asked = None
            tree.learn(instance_id, blocks)
            if not tier and (there := self._sent.get(instance_id)) is not None:
                _raise_kept(there, blocks)

    def lost(self, instance_id: str, blocks: Sequence[int], kept: int, tier: str = "") -> None:
        """The engine says that of this prompt it has no more than the first `kept`, in its pages; or in these and this tier."""
        tree = self.beyond_pages.get(tier) if tier else self._tree
        if tree is not None:
            self._asked = None
            tree.unlearn(instance_id, blocks, kept)

    def cleared(self, instance_id: str) -> None:
        """The instance has emptied its cache, or is another process now."""
        self._asked = None
        self._sent.pop(instance_id, None)
        self._tree.forget(instance_id)
        for tree in self.beyond_pages.values():
            tree.forget(instance_id)

    def forget(self, instance_id: str) -> None:
        """The instance is gone, for good or as far as is known."""
        self.cleared(instance_id)
        self._tree.limit(instance_id, None)
        self.capacities.pop(instance_id, None)
        for tell in self.forgot:
            tell(instance_id)

    def clear(self) -> None:
        """Everything, of all instances."""
        self._asked = None
        self._sent.clear()
        self._tree.clear()
        self.beyond_pages.clear()
        for tell in self.forgot:
            tell(None)

    def capacity(self, instance_id: str, tokens: int | None) -> None:
        """Note how many tokens fit into an engine's cache; None where it does not say."""
        self.capacities[instance_id] = tokens
        tokens = tokens or self._kv_tokens
        blocks = None if tokens is None else tokens // self.block_tokens
        if self._tree.limit(instance_id, blocks):
            self._asked = None

    def _tokens(self, blocks: int, call: Call) -> int:
        # The last block of tools is short, and prompt_tokens an estimate.
        tokens = blocks * self.block_tokens
        if tokens > call.prompt_tokens:
            return call.prompt_tokens
        return tokens


def _raise_kept(there: Sequence[SentPrompt], blocks: Sequence[int]) -> None:
    """The engine itself has said that it has these: no leg that comes to nothing takes them back."""
    for one in there:
        if one.open and blocks:
            common = _common(one.blocks, blocks)
            if common > one.kept:  # noqa: PLR1730 (a fifth of the time of max)
                one.kept = common


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two prompts begin with alike."""
    return in_common(one, other, 0) if one[0] == other[0] else 0


def _heard(there: Sequence[SentPrompt], blocks: Sequence[int], kept: int) -> SentPrompt:
    """What another process sent and takes back now, as it was heard, if it is remembered."""
    for one in there:
        if not one.ours and len(one.blocks) == len(blocks) and one.blocks[-1] == blocks[-1]:
            one.kept = kept
            return one
    return SentPrompt(blocks, kept, ours=False)


class PrefixUpdate(SentPrompt):
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
        self._call: Call | None = call
        name = self._instance_id = at.instance.id
        self._reads = reads
        # Each of these is made for a leg, so nothing is asked that is known.
        fits = at.beyond.kv_capacity
        if index.capacities.get(name, -1) != fits:
            index.capacity(name, fits)
        # Of what it has in a tier, as much as before is there without us.
        in_pages = index.in_pages(call, name) if index.beyond_pages else None
        had = self.cached_tokens = index.routed(call, name, reads=reads)
        held = had if in_pages is None else in_pages
        # Nor by the base class, or by a function, as `routed` has just asked for them.
        blocks = call.blocks
        if blocks is None:
            blocks = index.blocks_of(call)
        self.blocks = blocks
        self.kept = held // index.block_tokens
        self.open = self.ours = True
        if blocks:
            index.sent(name, self)

    def confirm(self) -> None:
        """The prompt is there. It may be remembered for longer than its call, whose body may be large."""
        self._call = None
        self.open = False

    def take_back(self) -> None:
        """The prompt has not come to be there after all."""
        call = self._call
        if call is not None:
            kept = self._index.kept_without(self._instance_id, self)
            self._index.unrouted(
                call, self._instance_id, self.cached_tokens, reads=self._reads, kept=kept
            )
            self.confirm()
