"""KV that travels between two cores, by a connector that copies pages in the process."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pdgate.engine.connector import Keep
from pdgate.engine.request import Finish, Output, Request, Sampling
from pdgate.engine.work import Options
from tests.support.engine_cores import GREEDY, Engine, ask, engine, layout, tokens_of
from tests.support.fake_connector import FakeConnector, Meeting
from tests.support.waiting import PATIENCE_SECONDS

TEXT = "The quick brown fox jumps over the lazy dog, and then over another one."
ONE_TOKEN = replace(GREEDY, max_tokens=1)


@dataclass
class Pair:
    meeting: Meeting
    prefill: Engine
    decode: Engine
    reader: FakeConnector

    def keep(self, request_id: str = "p", text: str = TEXT) -> Output:
        asked = ask(request_id, text, ONE_TOKEN, params={"keep": True})
        return self.prefill.answer(asked)[-1]

    def reading(self, params: Any, request_id: str = "d", text: str = TEXT) -> Request:
        return ask(request_id, text, params=params)


def pair(*, lease_seconds: float = 30.0, options: Options | None = None, **reader: bool) -> Pair:
    meeting = Meeting(layout())
    prefill, decode = engine(), engine(options)
    prefill.core.connect(
        FakeConnector(prefill.core, prefill.memory, meeting, lease_seconds=lease_seconds)
    )
    connector = FakeConnector(decode.core, decode.memory, meeting, **reader)
    decode.core.connect(connector)
    prefill.core.start()
    decode.core.start()
    return Pair(meeting, prefill, decode, connector)


@pytest.fixture
def ended() -> Iterator[list[Pair]]:
    """Pairs that are stopped when the test is over, and then hold no page."""
    pairs: list[Pair] = []
    yield pairs
    for made in pairs:
        made.reader.go()
        for side in (made.prefill, made.decode):
            side.core.stop()
            assert side.core.gauges.blocks_used == 0


@pytest.fixture
def expected() -> list[int]:
    made = engine()
    made.core.start()
    tokens = made.tokens(ask("single", TEXT))
    made.core.stop()
    return tokens


def test_a_pair_answers_as_one_engine_does(ended: list[Pair], expected: list[int]) -> None:
    ended.append(made := pair())

    kept = made.keep()
    answer = made.decode.answer(made.reading(kept.kv_transfer_params))

    assert tokens_of(answer) == expected
    assert made.decode.core.stats.prompts_computed == 1
    assert made.decode.core.stats.prompts_from_peer == len(ask("", TEXT).prompt) - 1


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("known", [False, True])
def test_prompts_around_the_edges_of_a_block(ended: list[Pair], length: int, known: bool) -> None:
    """Also when decode has all full blocks already, and when nothing is left to load."""
    ended.append(made := pair())
    prompt = ask("", TEXT).prompt[:length]
    right = made.prefill.tokens(replace(ask("right", ""), prompt=prompt))
    if known:
        made.decode.answer(replace(ask("before", ""), prompt=prompt))
    asked = replace(ask("p", "", ONE_TOKEN, params={"keep": True}), prompt=prompt)

    kept = made.prefill.answer(asked)[-1].kv_transfer_params

    assert kept is not None
    assert kept["tokens"] == length
    assert made.decode.tokens(replace(made.reading(kept), prompt=prompt)) == right


def test_wrong_pages_change_the_answer(ended: list[Pair], expected: list[int]) -> None:
    """The control: if this passes with right pages, the test above proves nothing."""
    ended.append(made := pair(spoil=True))

    kept = made.keep()

    assert tokens_of(made.decode.answer(made.reading(kept.kv_transfer_params))) != expected


def test_known_blocks_are_not_fetched_again(ended: list[Pair], expected: list[int]) -> None:
    ended.append(made := pair())
    made.decode.answer(made.reading(made.keep("p0").kv_transfer_params, "d0"))

    answer = made.decode.answer(made.reading(made.keep("p1").kv_transfer_params, "d1"))

    assert tokens_of(answer) == expected
    assert made.reader.skipped["d1"] == 64


def test_a_load_holds_up_nobody_else(ended: list[Pair]) -> None:
    ended.append(made := pair(hold=True))
    made.decode.core.submit(made.reading(made.keep().kv_transfer_params))

    answer = made.decode.answer(ask("near", "Something else"))

    assert answer[-1].finish is Finish.LENGTH
    assert made.decode.core.gauges.loading == 1
    made.reader.go()
    assert made.decode.answers("d")["d"][-1].finish is Finish.LENGTH


def test_pages_of_an_aborted_load_stay_taken_until_it_ends(ended: list[Pair]) -> None:
    ended.append(made := pair(hold=True))
    made.decode.core.submit(made.reading(made.keep().kv_transfer_params))
    assert made.reader.started.wait(PATIENCE_SECONDS)

    made.decode.core.abort("d")

    assert made.decode.answers("d")["d"][-1].finish is Finish.ABORT
    assert made.reader.cancelled == ["d"]
    assert made.decode.core.gauges.blocks_used > 0
    made.reader.go()
    made.decode.answer(ask("next", "x"))
    assert made.decode.core.gauges.blocks_used == 0


def test_a_failed_load_is_an_error_by_default(ended: list[Pair]) -> None:
    ended.append(made := pair())

    last = made.decode.answer(made.reading({"from": "nobody", "tokens": 9}))[-1]

    assert last.refusal is not None
    assert not last.refusal.blame_client
    assert last.refusal.over_kv


def test_a_connector_may_call_a_failed_load_an_abort(
    ended: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeConnector, "load_failure", "abort")
    ended.append(made := pair())

    last = made.decode.answer(made.reading({"from": "nobody", "tokens": 9}))[-1]

    assert last.finish is Finish.ABORT


def test_a_failed_load_can_be_computed_instead(ended: list[Pair], expected: list[int]) -> None:
    ended.append(made := pair(options=Options(on_failed_load="recompute")))

    answer = made.decode.answer(made.reading({"from": "nobody", "tokens": 9}))

    assert tokens_of(answer) == expected
    assert made.decode.core.stats.prompts_from_peer == 0


@pytest.mark.parametrize("known", [False, True])
def test_what_a_silent_peer_may_still_write_is_computed_in_other_pages(
    ended: list[Pair], expected: list[int], known: bool
) -> None:
    """Also where some of the pages are the prefix cache's. The late write brings rubbish."""
    ended.append(made := pair(options=Options(on_failed_load="recompute"), hold=True, spoil=True))
    kept = made.keep()
    if known:
        made.decode.answer(ask("before", TEXT[:40]))
    made.decode.core.submit(made.reading(kept.kv_transfer_params))
    assert made.reader.started.wait(PATIENCE_SECONDS)

    made.decode.core.gave_up("d", "the peer is silent")
    first = made.decode.next()
    taken = made.decode.core.gauges.blocks_used
    made.reader.go()

    rest = made.decode.answers("d")["d"]
    assert tokens_of([first, *rest]) == expected
    assert made.decode.core.stats.loads_failed == 1
    # Twice: what was stranded, and what was computed.
    assert taken > 2 * len(TEXT) // 16 - 4
    made.decode.answer(ask("next", "x"))
    assert made.decode.core.gauges.blocks_used == 0


def test_stranded_pages_outlive_a_request_that_was_aborted(ended: list[Pair]) -> None:
    ended.append(made := pair(options=Options(on_failed_load="recompute"), hold=True))
    made.decode.core.submit(made.reading(made.keep().kv_transfer_params))
    assert made.reader.started.wait(PATIENCE_SECONDS)

    made.decode.core.gave_up("d", "the peer is silent")
    made.decode.core.abort("d")

    made.decode.answers("d")
    made.decode.answer(ask("next", "x"))
    assert made.decode.core.gauges.blocks_used == 5
    made.reader.go()
    made.decode.answer(ask("last", "x"))
    assert made.decode.core.gauges.blocks_used == 0


@pytest.mark.parametrize("tokens", ["many", 10_000, -1])
def test_bad_params_are_the_clients_fault(ended: list[Pair], tokens: Any) -> None:
    ended.append(made := pair())

    last = made.decode.answer(made.reading({"from": "p", "tokens": tokens}))[-1]

    assert last.refusal is not None
    assert last.refusal.blame_client


@pytest.mark.parametrize("hook", ["plan", "start", "kept", "cancel", "dropped"])
def test_a_broken_hook_costs_its_own_request_only(
    ended: list[Pair], monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    ended.append(made := pair(hold=hook == "cancel"))
    kept = made.keep()

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(FakeConnector, hook, broken)
    match hook:
        case "plan" | "start":
            last = made.decode.answer(made.reading(kept.kv_transfer_params))[-1]
            assert last.refusal is not None
        case "kept":
            assert made.keep("p1").refusal is not None
        case "cancel":
            made.decode.core.submit(made.reading(kept.kv_transfer_params))
            assert made.reader.started.wait(PATIENCE_SECONDS)
            made.decode.core.abort("d")
        case "dropped":
            made.prefill.core.abort("p")

    monkeypatch.undo()
    for side in (made.prefill, made.decode):
        assert side.answer(ask("next", "x"))[-1].finish is Finish.LENGTH


def test_kept_pages_are_given_back_when_the_lease_is_over(ended: list[Pair]) -> None:
    """And a reader who comes too late is refused, never given other pages."""
    ended.append(made := pair(lease_seconds=0.05))
    gone = threading.Event()
    dropped = FakeConnector.dropped

    def told(self: FakeConnector, request_id: str, why: str) -> None:
        dropped(self, request_id, why)
        gone.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeConnector, "dropped", told)
        kept = made.keep()
        assert gone.wait(PATIENCE_SECONDS)

    assert made.meeting.dropped == [("p", "the lease is over")]
    assert made.decode.answer(made.reading(kept.kv_transfer_params))[-1].refusal is not None


def test_kept_pages_stay_until_they_are_released(ended: list[Pair]) -> None:
    ended.append(made := pair())
    made.keep()
    assert made.prefill.core.gauges.blocks_kept == 5

    made.prefill.core.release("p")
    made.prefill.answer(ask("next", "x"))

    assert made.prefill.core.gauges.blocks_used == 0


def test_an_aborted_prefill_is_dropped(ended: list[Pair]) -> None:
    ended.append(made := pair())
    endless = Sampling(max_tokens=1500, temperature=0, ignore_eos=True)
    made.prefill.core.submit(ask("p", TEXT, endless, params={"keep": True}))
    made.prefill.next()

    made.prefill.core.abort("p")

    made.prefill.answers("p")
    assert made.meeting.dropped == [("p", "aborted")]


def test_a_peer_can_have_a_prompt_computed(ended: list[Pair], expected: list[int]) -> None:
    """Delegation: no client, nothing sampled, the pages wait for the reader."""
    ended.append(made := pair())
    prompt = ask("", TEXT).prompt
    made.prefill.core.submit_prefill("job", prompt, len(prompt) - 1, Keep(30.0))
    made.prefill.answer(ask("after", "x"))

    answer = made.decode.answer(made.reading({"from": "job", "tokens": len(prompt) - 1}))

    assert tokens_of(answer) == expected
    assert made.prefill.core.stats.generated == len(expected)


def test_a_waiting_reader_that_leaves_lets_its_peer_go(ended: list[Pair]) -> None:
    """It had no pages yet, so nothing is copied; but prefill's pages must not wait."""
    ended.append(made := pair())
    kept = made.keep()
    filler = ask("filler", "y" * 1990, replace(GREEDY, max_tokens=40))
    made.decode.core.submit(filler)
    with made.decode.resting():
        made.decode.core.submit(made.reading(kept.kv_transfer_params))

        made.decode.core.abort("d")

    assert made.decode.answers("d", "filler")["d"][-1].finish is Finish.ABORT
    assert made.reader.ended.wait(PATIENCE_SECONDS)
    made.prefill.answer(ask("next", "x"))
    assert made.prefill.core.gauges.blocks_kept == 0
