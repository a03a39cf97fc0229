"""Which protocol a request speaks, and what each mode makes of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.vllm.answers import filled
from pdgate.engine.vllm.dialects import DialectMode
from pdgate.engine.vllm.orders import AskedRequest, Hold, Progress
from pdgate.engine.vllm.reports import Results
from tests.engine.vllm.two_workers import (
    LAYOUT,
    P_BLOCKS,
    PROMPT,
    SECONDS,
    TOKENS,
    Pair,
    kept,
)

HOLD = {"do_remote_decode": True}
ASK = {"do_remote_decode": True, "do_remote_prefill": False}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def compute(pair: Pair) -> None:
    """All layers, in the step after the order to hold."""
    pair.p.obey([Progress("p1", P_BLOCKS, TOKENS)])
    for layer in range(LAYOUT.layers):
        pair.compute(layer)


def handed_over(pair: Pair) -> bool:
    ended = pair.d.outcome()
    assert ended.failed == frozenset()
    assert pair.p.freed.wait(SECONDS)
    assert pair.p.results().sent == {"p1"}
    return pair.same()


@pytest.mark.parametrize("decode", DialectMode)
@pytest.mark.parametrize("prefill", DialectMode)
@pytest.mark.parametrize("staged", [False, True], ids=["delegated", "staged"])
def test_any_two_modes_go_together(
    staged: bool, prefill: DialectMode, decode: DialectMode, stack: ExitStack
) -> None:
    pair = Pair("shm", stack, (prefill, decode))
    if staged:
        pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, HOLD))])
        pair.d.fetch({"do_remote_prefill": True, **pair.at_p})
    else:
        pair.p.obey([pair.delegated()])
    compute(pair)
    pair.p.obey([kept()])

    assert handed_over(pair)


@pytest.mark.parametrize("prefill", DialectMode)
def test_only_layerwise_writes_before_the_prompt_is_computed(
    prefill: DialectMode, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def tell(hand_over: TwoSided, request_id: str, layer: int, *rest: Any) -> None:
        told.append(layer)

    monkeypatch.setattr(TwoSided, "layer_computed", tell)
    pair = Pair("shm", stack, (prefill, DialectMode.PUSH))
    pair.p.obey([pair.delegated()])

    compute(pair)

    assert told == (list(range(LAYOUT.layers)) if prefill is DialectMode.LAYERWISE else [])
    assert not any(pair.d.memory)
    pair.p.obey([kept()])
    assert handed_over(pair)


@pytest.mark.parametrize("mode", DialectMode)
def test_vllm_nixl_reads_what_prefill_holds(mode: DialectMode, stack: ExitStack) -> None:
    pair = Pair("shm", stack, (mode, mode))
    pair.p.obey([Hold(AskedRequest("p1", "r of prefill", PROMPT, ASK))])
    compute(pair)
    pair.p.obey([kept(len(PROMPT))])

    pair.d.fetch(answer(pair), "another r")

    assert handed_over(pair)


def test_a_reader_may_come_before_the_worker_holds_the_blocks(stack: ExitStack) -> None:
    """vLLM answers prefill's client before its worker hears of the end of the prompt."""
    pair = Pair("shm", stack)
    pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, ASK))])
    compute(pair)

    pair.d.fetch(answer(pair))
    pair.p.obey([kept(len(PROMPT))])

    assert handed_over(pair)


@pytest.mark.parametrize(
    "forged",
    [
        {"remote_engine_id": "of another life"},
        {"remote_block_ids": [list(P_BLOCKS), []]},
        {"remote_request_id": None},
        {"remote_num_tokens": 4},
        {"remote_port": True},
        {"do_remote_decode": True},
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_fails_alone(
    forged: dict[str, Any], stack: ExitStack
) -> None:
    pair = Pair("shm", stack)
    pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, ASK))])
    compute(pair)
    pair.p.obey([kept(len(PROMPT))])

    pair.d.fetch({**answer(pair), **forged})

    ended = pair.d.outcome()
    assert ended == Results(frozenset(), frozenset({"d1"}), frozenset({"d1"}))
    assert not any(pair.d.memory)


@pytest.mark.parametrize("named", [[1], [99, 98, 97]], ids=str)
def test_blocks_that_the_request_does_not_have_are_not_read(
    named: list[int], stack: ExitStack
) -> None:
    """Whatever an answer names: it may be of an earlier life of the blocks."""
    pair = Pair("shm", stack)
    pair.p.obey([Hold(AskedRequest("p1", "r", PROMPT, ASK))])
    compute(pair)
    pair.p.obey([kept(len(PROMPT))])

    pair.d.fetch({**answer(pair), "remote_block_ids": [named]})

    assert handed_over(pair)


def test_without_a_form_there_is_no_answer() -> None:
    assert filled({}, "p1", [1], 4, 0) is None


def answer(pair: Pair) -> dict[str, Any]:
    """As vLLM's scheduler gives it."""
    found = filled(pair.p.hand_over.answer_form(), "p1", P_BLOCKS, len(PROMPT), 0)
    assert found is not None
    return found
