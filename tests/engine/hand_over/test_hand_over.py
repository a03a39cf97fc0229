"""Every protocol moves the pages of a prompt from one engine to the other, on every backend."""

from dataclasses import replace

import pytest

from tests.support.engine_pair import (
    AT_ONCE,
    D_BLOCKS,
    DIALECTS,
    P_BLOCKS,
    PROMPT,
    TWO_LEGGED,
    WITH_FIRST_TOKEN,
    Start,
    prefill,
)
from tests.support.fake_core import LAYOUT, SECONDS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_pages_arrive_and_prefill_lets_go_of_its_own(dialect: str, start: Start) -> None:
    pair = start(dialect)

    load = pair.d.load(pair.to_decode(prefill(pair)), D_BLOCKS)

    assert pair.d.result() is None
    assert load.tokens == len(PROMPT) - (0 if dialect in WITH_FIRST_TOKEN else 1)
    assert pair.d.handed == ([("d1", 7)] if dialect in WITH_FIRST_TOKEN else [])
    assert pair.d.holds(D_BLOCKS, seed=1)
    untouched = set(range(LAYOUT.blocks)) - set(D_BLOCKS)
    assert not any(any(pair.d.page(layer, b)) for b in untouched for layer in range(LAYOUT.layers))
    freed = pair.p.freed.get(timeout=SECONDS)
    assert freed == (pair.p.prefills.get()[0] if dialect == "vllm-kvt batch" else "p1")
    counters = pair.d.connector.counters
    assert (counters.transfers, counters.failed) == (1, 0)
    assert counters.bytes_moved == 2 * LAYOUT.layers * LAYOUT.page_bytes


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if not d.startswith("neuron")])
def test_both_sides_count_what_was_moved_and_how_long_it_took(dialect: str, start: Start) -> None:
    pair = start(dialect)

    pair.d.load(pair.to_decode(prefill(pair)), D_BLOCKS)
    assert pair.d.result() is None
    # Decode may know before prefill does.
    pair.p.freed.get(timeout=SECONDS)

    sent, came = pair.p.connector.counters, pair.d.connector.counters
    assert (sent.sent, sent.sends_failed, sent.lingering) == (1, 0, 0)
    assert sent.bytes_sent == came.bytes_moved == 2 * LAYOUT.layers * LAYOUT.page_bytes
    assert came.seconds > 0
    assert sent.seconds_sending > 0


@pytest.mark.parametrize("dialect", AT_ONCE)
def test_decode_may_come_first(dialect: str, start: Start) -> None:
    pair = start(dialect)

    pair.d.load(pair.to_decode(), D_BLOCKS)
    assert pair.d.results.empty()
    prefill(pair)

    assert pair.d.result() is None
    assert pair.d.holds(D_BLOCKS, seed=1)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_blocks_of_the_prefix_cache_are_left_alone(dialect: str, start: Start) -> None:
    """They are shared with other requests."""
    pair = start(dialect)
    answer = prefill(pair)

    pair.d.load(pair.to_decode(answer), D_BLOCKS, skip_tokens=LAYOUT.block_tokens)

    assert pair.d.result() is None
    assert not any(pair.d.page(0, D_BLOCKS[0]))
    assert pair.d.holds(D_BLOCKS[1:], seed=1, first=1)


@pytest.mark.parametrize("dialect", TWO_LEGGED)
def test_with_all_in_the_prefix_cache_prefill_still_lets_go(dialect: str, start: Start) -> None:
    pair = start(dialect)
    answer = prefill(pair)

    pair.d.load(pair.to_decode(answer), D_BLOCKS, skip_tokens=len(PROMPT))

    assert pair.d.result() is None
    assert pair.p.freed.get(timeout=SECONDS) == "p1"


@pytest.mark.parametrize("dialect", [d for d in TWO_LEGGED if d not in WITH_FIRST_TOKEN])
def test_a_prompt_of_one_token_is_computed_and_prefill_lets_go(dialect: str, start: Start) -> None:
    pair = start(dialect)
    answer = pair.p.prefill(pair.to_prefill(prompt=(5,)), P_BLOCKS[:1])

    assert pair.d.connector.plan(pair.to_decode(answer, prompt=(5,))) is None

    assert pair.p.freed.get(timeout=SECONDS) == "p1"


@pytest.mark.parametrize("dialect", WITH_FIRST_TOKEN)
def test_a_prompt_of_one_token_comes_with_the_token_behind_it(dialect: str, start: Start) -> None:
    pair = start(dialect)
    answer = pair.p.prefill(pair.to_prefill(prompt=(5,)), P_BLOCKS[:1])

    pair.d.load(pair.to_decode(answer, prompt=(5,)), D_BLOCKS[:1])

    assert pair.d.result() is None
    assert pair.d.handed == [("d1", 7)]
    assert pair.d.holds(D_BLOCKS[:1], seed=1)


@pytest.mark.parametrize("dialect", [d for d in WITH_FIRST_TOKEN if d != "lmdeploy"])
def test_a_prefill_that_sampled_nothing_hands_nothing_over(dialect: str, start: Start) -> None:
    """Then decode computes the last token, as elsewhere; LMDeploy's fails (test_lmdeploy.py)."""
    pair = start(dialect)

    pair.d.load(pair.to_decode(prefill(pair, first_token=None)), D_BLOCKS)

    assert pair.d.result() is None
    assert pair.d.handed == []


def test_sglang_takes_lists_of_one(start: Start) -> None:
    pair = start("sglang")
    prefill(pair)
    to_decode = pair.to_decode()

    pair.d.load(
        replace(to_decode, body={name: [v] for name, v in to_decode.body.items()}), D_BLOCKS
    )

    assert pair.d.result() is None
