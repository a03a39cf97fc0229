"""What an engine has beyond its pages is known by tier, outlives the pages, and counts at the tier's price."""

from collections.abc import Sequence
from typing import Any

import pytest

from pdgate.gateway.kv_events.events import read
from pdgate.gateway.kv_events.media import tier_of
from pdgate.protocols.call import Call
from pdgate.scheduling.prefix import blocks_of
from pdgate.scheduling.prefix.index import PrefixUpdate
from pdgate.scheduling.prefix.tiers import DISK, HOST, worth
from tests.gateway.kv_events import vllm_offloading
from tests.gateway.kv_events.engine import CLEARED, KvCache
from tests.gateway.kv_events.test_translation import TOKENS, Fleet, completion
from tests.scheduling.prefix.test_index import endpoint


def by_names(cache: KvCache, medium: str) -> dict[str, Any]:
    """As vLLM's OffloadingConnector says it."""
    return cache.stored(TOKENS, token_ids=[], parent_block_hash=None, block_size=0, medium=medium)


def gone(cache: KvCache, medium: str, tokens: Sequence[int] = TOKENS) -> dict[str, Any]:
    return cache.removed(tokens) | {"medium": medium}


@pytest.fixture
def call() -> Call:
    return completion(TOKENS)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, ""),
        ("GPU", ""),
        ("npu", ""),
        ("CPU", HOST),
        ("DISK", DISK),
        ("STORAGE", DISK),
        ("FS", DISK),
        ("x", DISK),
    ],
)
def test_a_medium_is_a_tier(medium: str | None, tier: str) -> None:
    assert tier_of(medium) == tier


@pytest.mark.parametrize("named", [True, False], ids=["by names", "whole"])
@pytest.mark.parametrize(("medium", "share"), [("CPU", 0.9), ("DISK", 0.6)])
def test_what_left_the_pages_counts_by_the_price_of_its_tier(
    call: Call, medium: str, share: float, *, named: bool
) -> None:
    fleet, cache = Fleet(), KvCache()
    offloaded = by_names(cache, medium) if named else cache.stored(TOKENS, medium=medium)
    fleet.says("a", cache.stored(TOKENS), offloaded)
    assert fleet.share(call) == 1

    fleet.says("a", gone(cache, "GPU"))
    assert fleet.share(call) == pytest.approx(share, abs=0.01)

    fleet.says("a", gone(cache, medium))
    assert fleet.share(call) == 0


def test_a_prompt_that_comes_when_only_a_tier_has_it_is_found(call: Call) -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), by_names(cache, "CPU"), gone(cache, "GPU"))
    fleet.says("b", cache.stored(TOKENS))

    assert fleet.share(call) == pytest.approx(0.9, abs=0.01)
    assert fleet.share(call, "b") == 1


def test_only_what_lies_beyond_the_pages_is_dearer(call: Call) -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), by_names(cache, "DISK"))
    fleet.share(call)
    fleet.says("a", cache.removed(TOKENS, 30))

    assert fleet.share(call) == pytest.approx(0.5 + 0.5 * 0.6, abs=0.05)
    assert worth(100, [(0.1, 80), (0.1, 200), (0.5, 300)]) == 100 + 90 + 50


def test_what_lies_in_a_tier_behind_blocks_that_are_nowhere_does_not_count(call: Call) -> None:
    """The tier never had the first half, or has dropped it, as it was hot in the pages and so never used there."""
    fleet, never, dropped = Fleet(), KvCache(), KvCache()
    fleet.says("a", never.stored(TOKENS))
    fleet.says("b", dropped.stored(TOKENS[:640]), dropped.stored(TOKENS[:640], medium="CPU"))
    assert fleet.share(call) == 1
    fleet.says("a", never.stored(TOKENS, 30, medium="CPU"))
    fleet.says("b", gone(dropped, "CPU", TOKENS[:480]))
    fleet.says("b", dropped.stored(TOKENS, 40), dropped.stored(TOKENS, 40, medium="CPU"))
    assert fleet.share(call) == fleet.share(call, "b") == 1

    for name, cache in (("a", never), ("b", dropped)):
        fleet.says(name, gone(cache, "GPU"))
        assert fleet.share(call, name) == 0


def test_what_a_tier_drops_while_the_pages_have_it_is_no_loss(call: Call) -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), by_names(cache, "CPU"))
    fleet.share(call)

    fleet.says("a", gone(cache, "CPU", TOKENS[:480]))
    fleet.says("a", cache.removed(TOKENS, 30))
    assert fleet.share(call) == pytest.approx(0.5 + 0.5 * 0.9, abs=0.05)

    fleet.says("a", gone(cache, "GPU", TOKENS[:480]))
    assert fleet.share(call) == 0


def test_what_a_tier_has_counts_again_once_the_pages_have_what_comes_before(call: Call) -> None:
    """The engine says no word of what it need not write into the tier again."""
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), by_names(cache, "CPU"))
    fleet.share(call)
    fleet.says("a", gone(cache, "CPU", TOKENS[:480]), gone(cache, "GPU"))
    assert fleet.share(call) == 0

    fleet.says("a", cache.stored(TOKENS[:320]), cache.stored(TOKENS, 20))
    fleet.says("a", cache.removed(TOKENS, 30))

    assert fleet.share(call) == pytest.approx(0.5 + 0.5 * 0.9, abs=0.05)


def test_names_that_nobody_knows_have_no_place_and_a_cleared_engine_has_nothing(call: Call) -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", by_names(cache, "CPU"))
    assert fleet.share(call) == 0
    assert fleet.translation.cached("a", 0).at(HOST).orphans == 60

    fleet.says("a", cache.stored(TOKENS), by_names(cache, "CPU"))
    fleet.share(call)
    fleet.says("a", CLEARED)

    assert fleet.share(call) == 0


def test_a_call_that_was_not_sent_after_all_leaves_the_tier_as_it_was(call: Call) -> None:
    fleet, cache = Fleet(), KvCache()
    fleet.says("a", cache.stored(TOKENS), by_names(cache, "CPU"), gone(cache, "GPU"))
    before = fleet.share(call)

    update = PrefixUpdate(fleet.index, call, endpoint("a"), reads=True)
    assert fleet.share(call) == 1
    update.take_back()

    assert update.cached_tokens == round(before * 128 * len(blocks_of(call)))
    assert fleet.share(call) == before


@pytest.mark.parametrize(
    ("offloaded", "gone", "tier", "share"),
    [
        (vllm_offloading.HOST, vllm_offloading.HOST_GONE, HOST, 0.9),
        (vllm_offloading.HOST_WHOLE, vllm_offloading.HOST_WHOLE_GONE, HOST, 0.9),
        (vllm_offloading.DISK, vllm_offloading.DISK_GONE, DISK, 0.6),
    ],
    ids=["host", "host, whole", "disk"],
)
def test_what_vllms_offloading_connector_publishes_is_heard_by_tier(
    offloaded: bytes, gone: bytes, tier: str, share: float
) -> None:
    fleet, call = Fleet(), completion(vllm_offloading.TOKENS)

    def hears(payload: bytes) -> None:
        said = read(payload)
        assert (said.unknown, bool(said.events)) == (0, True)
        fleet.translation.take("a", 0, said, fleet.seen)

    hears(vllm_offloading.PAGES)
    assert fleet.share(call) == 1
    hears(offloaded)
    hears(vllm_offloading.PAGES_GONE)
    assert fleet.share(call) == pytest.approx(share, abs=0.01)
    assert [*fleet.translation.cached("a", 0).beyond] == [tier]

    hears(gone)
    assert fleet.share(call) == 0


def test_blocks_that_vllm_offloads_whole_are_known_without_its_pages() -> None:
    """As after a restart of the gateway."""
    fleet, call = Fleet(), completion(vllm_offloading.TOKENS)

    fleet.translation.take("a", 0, read(vllm_offloading.HOST_WHOLE), fleet.seen)

    assert fleet.share(call) == pytest.approx(0.9, abs=0.01)
