"""Decode goes on behind the token that prefill sampled, as if it had sampled it itself."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.request import Finish, Output, Sampling
from tests.support.engine_cores import GREEDY, Engine, ask, engine, layout, tokens_of
from tests.support.fake_connector import FakeConnector, Meeting
from tests.support.waiting import PATIENCE_SECONDS

TEXT = "The quick brown fox jumps over the lazy dog, and then over another one."
PROMPT = ask("", TEXT).prompt
FEW = replace(GREEDY, max_tokens=8)
SEEDED = Sampling(max_tokens=8, temperature=1.0, top_p=0.9, seed=5, ignore_eos=True)


class Pair:
    def __init__(self) -> None:
        self.meeting = Meeting(layout())
        self.prefill, self.decode = self._side(), self._side()

    def _side(self) -> Engine:
        made = engine()
        made.core.connect(
            FakeConnector(made.core, made.memory, self.meeting, hands_first_token=True)
        )
        made.core.start()
        return made

    def answer(self, sampling: Sampling, handed: int | None = None) -> list[Output]:
        """Both engines are asked the same, as SGLang's are; `handed` forges the token."""
        kept = self.prefill.answer(ask("p", TEXT, sampling, params={"keep": True}))[-1]
        if handed is not None:
            self.meeting.first_tokens["p"] = handed
        params: dict[str, Any] = {
            "from": "p",
            "tokens": len(PROMPT),
            **(kept.kv_transfer_params or {}),
        }
        return self.decode.answer(ask("d", TEXT, sampling, params=params))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for side in (made.prefill, made.decode):
        side.core.stop()
        assert side.core.gauges.blocks_used == 0


def alone(sampling: Sampling) -> list[Output]:
    single = engine()
    single.core.start()
    answer = single.answer(ask("single", TEXT, sampling))
    single.core.stop()
    return answer


@pytest.mark.parametrize("sampling", [FEW, SEEDED], ids=["greedy", "seeded"])
def test_decode_computes_nothing_of_the_prompt(pair: Pair, sampling: Sampling) -> None:
    answer = pair.answer(sampling)

    assert tokens_of(answer) == tokens_of(alone(sampling))
    assert "".join(output.text for output in answer) == "".join(
        output.text for output in alone(sampling)
    )
    assert pair.decode.core.stats.prompts_computed == 0
    assert pair.decode.core.stats.prompts_from_peer == len(PROMPT)


def test_prefill_stops_behind_it(pair: Pair) -> None:
    """Though the request that it got names as many tokens as decode's."""
    pair.answer(FEW)

    assert pair.prefill.core.stats.generated == 1


def test_an_answer_of_one_token_is_prefills(pair: Pair) -> None:
    one = replace(GREEDY, max_tokens=1)

    answer = pair.answer(one)

    assert tokens_of(answer) == tokens_of(alone(one))
    assert answer[-1].finish is Finish.LENGTH
    assert pair.decode.core.stats.steps == 0


def test_a_first_token_may_end_the_answer(pair: Pair) -> None:
    (first, *_) = tokens_of(alone(FEW))

    answer = pair.answer(replace(FEW, stop_token_ids=frozenset({first})))

    assert answer[-1].finish is Finish.STOP
    assert answer[-1].stopped_by == first
    assert tokens_of(answer) == [first]


def test_a_token_that_may_not_come_yet_is_sampled_here(pair: Pair) -> None:
    """Prefill may not know of min_tokens."""
    (first, *_) = tokens_of(alone(FEW))
    asked = replace(FEW, stop_token_ids=frozenset({first}), min_tokens=2)

    answer = pair.answer(asked, handed=first)

    assert tokens_of(answer) == tokens_of(alone(asked))
    assert pair.decode.core.stats.prompts_computed == 1


def test_where_logprobs_are_asked_for_it_is_sampled_here(pair: Pair) -> None:
    """Those of prefill stay there."""
    asked = replace(FEW, logprobs=2)

    answer = pair.answer(asked)

    right = alone(asked)
    assert tokens_of(answer) == tokens_of(right)
    assert [o.logprobs[0].logprob for o in answer] == pytest.approx(
        [o.logprobs[0].logprob for o in right], abs=1e-4
    )
    assert pair.decode.core.stats.prompts_computed == 1


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_of_another_vocabulary_fails_the_load(pair: Pair, token: int) -> None:
    last = pair.answer(FEW, handed=token)[-1]

    assert last.refusal is not None
    assert "which this model does not have" in last.refusal.message


def test_a_prompt_that_is_only_read_samples_nothing(pair: Pair) -> None:
    answer = pair.answer(replace(FEW, max_tokens=0))

    assert tokens_of(answer) == []
    assert answer[-1].finish is Finish.LENGTH


def test_an_abort_before_the_kv_is_there_forgets_it(pair: Pair) -> None:
    reader = pair.decode.core._work.hooks.connector
    assert isinstance(reader, FakeConnector)
    reader._hold = True
    kept = pair.prefill.answer(ask("p", TEXT, FEW, params={"keep": True}))[-1]
    pair.decode.core.submit(ask("d", TEXT, FEW, params=kept.kv_transfer_params))
    assert reader.started.wait(PATIENCE_SECONDS)

    pair.decode.core.abort("d")
    reader.go()

    assert tokens_of(pair.decode.answers("d")["d"]) == []
    pair.decode.answer(ask("next", "x"))
