"""The KV memory of a simulated engine."""

import pytest

from pdgate.lab.simulator.kv_cache import CallShare, KvCache
from pdgate.lab.simulator.trace import BLOCK_TOKENS

A, B, C, D = 11, 22, 33, 44


def taken(cache: KvCache, *blocks: int, more: int = 1) -> CallShare:
    share = cache.take(blocks, len(blocks) * BLOCK_TOKENS + more)
    assert share is not None
    return share


def computed(cache: KvCache, *blocks: int) -> None:
    """A call that came and went."""
    share = taken(cache, *blocks)
    cache.fill(share, len(blocks) * BLOCK_TOKENS)
    cache.release(share)


def test_what_a_call_computed_is_found_by_the_next() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)

    computed(cache, A, B)

    assert taken(cache, A, B, C).found == 2 * BLOCK_TOKENS


def test_a_block_is_found_only_behind_those_before_it() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)

    computed(cache, A, B)

    assert taken(cache, C, B).found == 0


def test_the_last_token_is_never_found() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)
    computed(cache, A, B)

    assert taken(cache, A, B, more=0).found == BLOCK_TOKENS


def test_what_is_not_computed_yet_is_not_found() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)
    share = taken(cache, A, B)
    cache.fill(share, 2 * BLOCK_TOKENS - 1)

    assert cache.find((A, B)) == 1


def test_two_that_share_blocks_hold_them_once() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)
    computed(cache, A, B)
    one, other = taken(cache, A, B), taken(cache, A, B)

    assert cache.held_tokens == 2 * BLOCK_TOKENS + 2
    cache.release(one)
    assert cache.held_tokens == 2 * BLOCK_TOKENS + 1
    cache.release(other)
    assert cache.held_tokens == 0
    assert cache.find((A, B)) == 2


def test_two_that_compute_the_same_leave_it_once() -> None:
    cache = KvCache(10 * BLOCK_TOKENS)
    one, other = taken(cache, A), taken(cache, A)
    for share in (one, other):
        cache.fill(share, BLOCK_TOKENS)
    for share in (one, other):
        cache.release(share)

    assert (cache.held_tokens, len(cache)) == (0, 1)


def test_the_longest_unused_goes_first_and_of_a_prompt_its_end() -> None:
    cache = KvCache(4 * BLOCK_TOKENS)
    computed(cache, A, B)
    computed(cache, C)

    share = taken(cache, D, more=BLOCK_TOKENS)

    assert (cache.find((A, B)), cache.find((C,))) == (1, 1)
    cache.release(share)
    assert (cache.find((A, B)), cache.find((C,))) == (1, 1)


def test_what_is_held_is_never_evicted() -> None:
    cache = KvCache(2 * BLOCK_TOKENS)
    computed(cache, A)
    share = taken(cache, A)

    assert cache.take((B, C), 2 * BLOCK_TOKENS) is None
    assert cache.find((A,)) == 1
    cache.release(share)
    assert cache.take((B, C), 2 * BLOCK_TOKENS) is not None


def test_no_room_takes_nothing() -> None:
    cache = KvCache(2 * BLOCK_TOKENS)
    computed(cache, A)
    before = cache.held_tokens, len(cache)

    assert cache.take((A, B, C), 3 * BLOCK_TOKENS) is None
    assert (cache.held_tokens, len(cache)) == before


@pytest.mark.parametrize("answered", [0, 1, 700])
def test_an_answer_takes_room_until_it_is_released(answered: int) -> None:
    cache = KvCache(4 * BLOCK_TOKENS)
    share = taken(cache, A)
    cache.fill(share, BLOCK_TOKENS)
    cache.grow(answered)

    assert cache.room == 3 * BLOCK_TOKENS - 1 - answered
    cache.release(share, answered)
    assert cache.room == 4 * BLOCK_TOKENS
