"""From what engines say of tokens to what the prefix index says of calls."""

from typing import Any

import pytest

from pdgate.gateway.kv_events.cached import Cached
from pdgate.gateway.kv_events.events import Stored
from pdgate.gateway.kv_events.prompts import is_text, of_text, of_token_ids, token_ids
from pdgate.gateway.kv_events.translation import EventTranslation, SeenEventCounts
from pdgate.protocols.apis import GENERATE
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Raw, encode
from pdgate.scheduling.prefix import PrefixIndex, blocks_of
from tests.gateway.kv_events.engine import CLEARED, KvCache, batch

TOKENS = list(range(10_000, 10_960))
"""60 blocks of 16; as JSON, 7 bytes each, about 13 blocks of bytes."""


def completion(prompt: Any, **more: Any) -> Call:
    body = {name: Raw(encode(field)) for name, field in {"prompt": prompt, **more}.items()}
    size = len(body["prompt"])
    return Call("id", "id", COMPLETIONS, body, model=more.get("model"), prompt_tokens=size // 4)


class Fleet:
    """Engines that publish, an index, and the translation between them."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.translation = EventTranslation(self.index)
        self.seen = SeenEventCounts()

    def says(self, instance_id: str, *events: Any, rank: int = 0) -> None:
        self.translation.take(instance_id, rank, batch(*events), self.seen)

    def share(self, call: Call, instance_id: str = "a") -> float:
        """Of the prompt that the index thinks the instance has."""
        tokens = token_ids(call)
        assert tokens is not None
        blocks = blocks_of(call)
        if not self.translation.links.knows(blocks):
            self.translation.learn(of_token_ids(call, blocks, tokens))
        return self.index.matched(call).get(instance_id, 0) / (128 * len(blocks))


def test_a_prompt_that_nobody_sent_through_us_is_found() -> None:
    fleet = Fleet()
    fleet.says("a", KvCache().stored(TOKENS))
    fleet.says("b", KvCache().stored(TOKENS[:480]))

    assert fleet.share(completion(TOKENS)) == 1
    assert 0.4 < fleet.share(completion(TOKENS), "b") <= 0.5
    assert fleet.share(completion(TOKENS), "c") == 0


def test_the_tokens_of_a_call_of_tokens_are_found_too() -> None:
    fleet = Fleet()
    fleet.says("a", KvCache().stored(TOKENS))
    body = {"token_ids": Raw(encode(TOKENS))}
    call = Call("id", "id", GENERATE, body, prompt_tokens=len(body["token_ids"]) // 4)

    assert fleet.share(call) == 1
    # Where there are pictures, their tokens do not say what they show.
    assert token_ids(Call("id", "id", GENERATE, {**body, "features": Raw(b"{}")})) is None


def test_it_does_not_matter_how_engines_name_their_blocks() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.says(name, KvCache(seed=name).stored(TOKENS))

    assert fleet.share(completion(TOKENS)) == fleet.share(completion(TOKENS), "b") == 1


def test_blocks_may_be_of_different_sizes() -> None:
    fleet = Fleet()
    fleet.says("a", KvCache(16).stored(TOKENS))
    fleet.says("b", KvCache(96).stored(TOKENS))

    assert fleet.share(completion(TOKENS)) == fleet.share(completion(TOKENS), "b") == 1


def test_a_prompt_known_before_its_blocks_are_stored_is_found_as_well() -> None:
    fleet = Fleet()
    fleet.says("a", KvCache().stored([1] * 16))
    assert fleet.share(completion(TOKENS)) == 0

    fleet.says("a", KvCache().stored(TOKENS[:480]))
    before = fleet.share(completion(TOKENS))
    fleet.says("a", KvCache().stored(TOKENS, 30))

    assert 0.4 < before <= 0.5
    assert fleet.share(completion(TOKENS)) == 1


def test_a_prompt_known_before_any_engine_said_how_long_its_blocks_are_is_found() -> None:
    fleet = Fleet()
    assert fleet.share(completion(TOKENS)) == 0

    fleet.says("a", KvCache().stored(TOKENS))

    assert fleet.share(completion(TOKENS)) == 1


def test_what_was_removed_is_believed_no_longer() -> None:
    """Also what the index believed because it had been routed there."""
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS))
    call = completion(TOKENS)
    fleet.share(call)
    fleet.index.routed(call, "a")

    fleet.says("a", cache.removed(TOKENS, 30))
    half = fleet.share(call)
    fleet.says("a", cache.removed(TOKENS[:480]))

    assert 0.4 < half <= 0.5
    assert fleet.share(call) == 0


def test_a_block_of_two_hashes_is_there_until_both_are_removed() -> None:
    """With a draft model that reads ahead, vLLM's hash covers the token behind the block, too."""
    fleet = Fleet()
    before_e, before_f = KvCache(seed="e"), KvCache(seed="f")
    for cache, next_token in ((before_e, 1), (before_f, 2)):
        ahead = [[token] for token in [*TOKENS[16::16], next_token]]
        fleet.says("a", cache.stored(TOKENS, lookahead_token_ids=ahead))

    fleet.says("a", before_e.removed(TOKENS))
    assert fleet.share(completion(TOKENS)) == 1
    fleet.says("a", before_f.removed(TOKENS))
    assert fleet.share(completion(TOKENS)) == 0
    assert not fleet.seen.malformed


def test_a_block_with_two_copies_is_there_until_both_are_removed() -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), cache.stored(TOKENS))

    fleet.says("a", cache.removed(TOKENS))
    once = fleet.share(completion(TOKENS))
    fleet.says("a", cache.removed(TOKENS))

    assert (once, fleet.share(completion(TOKENS))) == (1, 0)


def test_an_engine_that_cleared_its_cache_has_nothing() -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS))
    assert fleet.share(completion(TOKENS)) == 1

    fleet.says("a", CLEARED)
    assert fleet.share(completion(TOKENS)) == 0

    fleet.says("a", cache.stored(TOKENS))
    assert fleet.share(completion(TOKENS)) == 1


def test_two_ranks_are_one_instance() -> None:
    fleet, cache = Fleet(), KvCache()
    for rank in (0, 1):
        fleet.says("a", cache.stored(TOKENS), rank=rank)
    call = completion(TOKENS)
    assert fleet.share(call) == 1

    fleet.says("a", cache.removed(TOKENS), rank=0)
    with_one = fleet.share(call)
    fleet.says("a", cache.removed(TOKENS), rank=1)

    assert (with_one, fleet.share(call)) == (1, 0)


def test_a_rank_that_forgot_leaves_the_other_ones_blocks() -> None:
    fleet, cache = Fleet(), KvCache()
    for rank in (0, 1):
        fleet.says("a", cache.stored(TOKENS), rank=rank)
    fleet.share(completion(TOKENS))

    fleet.translation.forget("a", 0)

    assert fleet.share(completion(TOKENS)) == 1


def test_tenants_and_adapters_are_kept_apart() -> None:
    fleet, cache = Fleet(), KvCache()
    salted = [["tenant"], *[None] * 59]
    adapted = [["lora"]] * 60
    fleet.says("a", cache.stored(TOKENS, extra_keys=salted))
    fleet.says("b", cache.stored(TOKENS, lora_name="lora", extra_keys=adapted))

    def shares(**more: Any) -> tuple[float, float]:
        call = completion(TOKENS, **more)
        return fleet.share(call), fleet.share(call, "b")

    assert shares() == (0, 0)
    assert shares(cache_salt="tenant") == (1, 0)
    assert shares(cache_salt="other") == (0, 0)
    assert shares(model="lora") == (0, 1)
    assert shares(model="base") == (0, 0)


def test_an_adapter_is_not_credited_with_what_engines_have_of_the_model_that_it_changes() -> None:
    """Its first call is tied before any engine can have published a block of it."""
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS))
    fleet.translation.know_adapters(["lora"])

    first = completion(TOKENS, model="lora")
    assert fleet.share(first) == 0
    assert fleet.share(completion(TOKENS, model="base")) == 1

    fleet.says("b", cache.stored(TOKENS, lora_name="lora", extra_keys=[["lora"]] * 60))
    assert (fleet.share(first), fleet.share(first, "b")) == (0, 1)


@pytest.mark.parametrize("by_events", [True, False])
def test_what_an_adapter_was_credited_with_before_it_was_known_is_taken_back(
    *, by_events: bool
) -> None:
    """As of an engine whose card of it names no parent; also in a tier."""
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), cache.stored(TOKENS, medium="CPU"))
    calls = [completion(TOKENS[:count], model="lora") for count in (960, 480)]
    base = completion(TOKENS, model="base")
    assert [fleet.share(call) for call in (*calls, base)] == [1, 1, 1]

    if not by_events:
        fleet.translation.know_adapters(["lora"])
    fleet.says("b", cache.stored(TOKENS, lora_name="lora", extra_keys=[["lora"]] * 60))

    assert [fleet.share(call) for call in calls] == [0, 0]
    assert [fleet.share(call, "b") for call in calls] == [1, 1]
    assert (fleet.share(base), fleet.share(base, "b")) == (1, 0)
    fleet.says("a", cache.removed(TOKENS), cache.removed(TOKENS) | {"medium": "CPU"})
    assert [fleet.share(call, "b") for call in calls] == [1, 1]


def test_a_chat_is_found_by_the_tokens_that_an_engine_tells() -> None:
    fleet, cache = Fleet(), KvCache()
    body = {"messages": Raw(encode([{"role": "user", "content": "x" * 4000}]))}
    call = Call("id", "id", CHAT, body, prompt_tokens=1000)
    fleet.says("a", cache.stored(TOKENS[:480]))

    fleet.translation.learn(of_text(call, blocks_of(call), TOKENS))

    assert fleet.index.matched(call)["a"] == 3 * 128, "480 of 960 tokens, rounded down to blocks"


def test_engines_are_not_asked_to_fetch_pictures() -> None:
    def chat(*parts: dict[str, Any]) -> Call:
        body = {"messages": Raw(encode([{"role": "user", "content": list(parts)}]))}
        return Call("id", "id", CHAT, body)

    text = {"type": "text", "text": "what is this?"}
    assert is_text(chat(text))
    assert not is_text(chat(text, {"type": "image_url", "image_url": {"url": "http://x/y"}}))
    assert not is_text(chat({"type": "input_audio", "input_audio": {}}, text))
    assert is_text(completion("text"))
    assert not is_text(completion(["one", "two"]))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("extra_key", "tenant"),
        ("lora_path", "an-adapter"),
        ("truncate_prompt_tokens", 500),
        ("truncation_side", "left"),
    ],
)
def test_a_prompt_that_engines_keep_as_another_one_is_not_found_by_its_tokens(
    field: str, said: object
) -> None:
    """Events do not say so, or its tokens are others."""
    for value, found in ((said, False), (None, True)):
        assert (token_ids(completion(TOKENS, **{field: value})) is not None) == found
        assert is_text(completion("text", **{field: value})) == found


def test_blocks_whose_parent_is_unknown_have_no_place() -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS, 30))

    assert fleet.share(completion(TOKENS)) == 0
    assert fleet.translation.cached("a", 0).pages.orphans == 30


def test_layers_that_keep_a_window_only_do_not_count() -> None:
    """They drop blocks that no prompt needs any more."""
    fleet, cache = Fleet(), KvCache()
    window = cache.stored(TOKENS, group_idx=1, kv_cache_spec_kind="sliding_window")
    fleet.says("a", cache.stored(TOKENS, group_idx=0, kv_cache_spec_kind="full_attention"), window)

    fleet.says("a", {**cache.removed(TOKENS), "group_idx": 1})

    assert fleet.share(completion(TOKENS)) == 1


def test_what_makes_no_sense_is_counted_and_passed_over() -> None:
    fleet, cache = Fleet(), KvCache()
    nonsense: list[Any] = [
        {"type": "BlockBaked"},
        7,
        {"type": "BlockStored", "block_hashes": "x"},
        {**cache.stored(TOKENS), "block_size": 0},
        {**cache.stored(TOKENS), "block_size": 17},
        {**cache.stored(TOKENS[:16]), "token_ids": [-1] * 16},
        {**cache.stored(TOKENS[:16]), "token_ids": [2**40] * 16},
    ]

    fleet.says("a", *nonsense, cache.stored(TOKENS))

    assert fleet.seen.malformed == len(nonsense)
    assert fleet.share(completion(TOKENS)) == 1


def test_a_publisher_cannot_fill_our_memory() -> None:
    cached = Cached(max_blocks=10)
    for event in batch(*(KvCache().stored([n] * 16 * 4) for n in range(5))).events:
        assert isinstance(event, Stored)
        cached.stored(event)

    assert (len(cached), cached.overflowed) == (8, 12)
