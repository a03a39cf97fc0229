"""An engine's load is our account of it, and what only the engine knows beyond that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.account import (
    Account,
    beyond,
    calls_there,
    context_tokens_of,
    kv_free_after,
    told,
    unlearnt,
    unread_tokens_there,
)
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.status import NOTHING, Status
from tests.support.scripted import D0, P0, chat

CALL = chat()


def says(endpoint: Endpoint, status: Status | None) -> None:
    """Nothing of ours happened between the question and the answer."""
    told(endpoint, status, Account.of(endpoint))


def pages(free: float) -> Status:
    return Status(kv_free=free, kv_tokens=1000)


def test_calls_of_other_gateways_are_seen_in_what_the_engine_says() -> None:
    endpoint = Endpoint(D0, calls=5)

    says(endpoint, Status(running=30, waiting=2))

    assert calls_there(endpoint) == 32


def test_calls_that_we_send_after_the_engine_has_spoken_count_at_once() -> None:
    endpoint = Endpoint(P0)
    says(endpoint, Status(running=3, queued_tokens=500))

    with Reservation(endpoint, 10, reads=True), Reservation(endpoint, 10, reads=True):
        assert calls_there(endpoint) == 5
        assert unread_tokens_there(endpoint) == 520
    assert calls_there(endpoint) == 3


def test_calls_of_ours_that_the_engine_speaks_of_count_once() -> None:
    endpoint = Endpoint(P0)
    with Reservation(endpoint, 10, reads=True):
        says(endpoint, Status(running=1, queued_tokens=10))

        assert calls_there(endpoint) == 1
        assert unread_tokens_there(endpoint) == 10
    assert calls_there(endpoint) == 0


def test_calls_that_begin_or_end_while_it_is_asked_are_taken_for_ours() -> None:
    endpoint = Endpoint(P0, calls=2, unread_tokens=20)
    asked = Account(calls=8, tokens=80, unread_tokens=80, unread_prompts=80)

    told(endpoint, Status(running=8, queued_tokens=80), asked)

    assert endpoint.beyond == NOTHING


def test_prompts_of_ours_that_are_cached_there_are_not_others() -> None:
    """An engine looks what of a prompt it has when it begins with it: all of those that wait are queued until then."""
    endpoint = Endpoint(P0, calls=4, tokens=8000, unread_tokens=400)
    says(endpoint, Status(running=1, waiting=3, queued_tokens=7900))

    assert unread_tokens_there(endpoint) == 400


def test_prompts_that_it_answers_already_are_not_among_what_it_has_queued() -> None:
    endpoint = Endpoint(P0, calls=4, answering=3, tokens=8000, unread_tokens=400)
    says(endpoint, Status(running=3, waiting=1, queued_tokens=5000))

    assert unread_tokens_there(endpoint) == 400 + 5000 - 2000


def test_who_says_that_it_is_idle_has_our_calls_all_the_same() -> None:
    liar = Endpoint(D0, calls=5, tokens=500, unread_tokens=100)

    says(liar, Status(kv_free=1, running=0, waiting=0, kv_tokens=1000))

    assert calls_there(liar) == 5
    assert unread_tokens_there(liar) == 100
    assert kv_free_after(CALL, liar) == 1 - (500 + CALL.prompt_tokens) / 1000


def test_who_says_no_more_has_nothing_beyond_our_account() -> None:
    endpoint = Endpoint(D0, calls=5)
    says(endpoint, Status(running=30))

    says(endpoint, None)

    assert endpoint.status is None
    assert calls_there(endpoint) == 5


def test_pages_that_our_calls_share_are_not_counted_twice() -> None:
    endpoint = Endpoint(D0, calls=2, tokens=400)

    says(endpoint, pages(free=0.7))

    assert kv_free_after(CALL, endpoint) == 1 - (300 + CALL.prompt_tokens) / 1000


def test_pages_of_answers_and_of_others_count() -> None:
    endpoint = Endpoint(D0, calls=2, tokens=400)

    says(endpoint, pages(free=0.2))

    assert kv_free_after(CALL, endpoint) == 1 - (800 + CALL.prompt_tokens) / 1000


def test_prompts_that_wait_at_the_engine_will_need_pages() -> None:
    endpoint = Endpoint(P0, calls=2, tokens=400, unread_tokens=300)

    says(endpoint, pages(free=0.9))

    assert kv_free_after(CALL, endpoint) == 1 - (400 + CALL.prompt_tokens) / 1000


def test_a_burst_that_does_not_fit_leaves_less_than_nothing() -> None:
    endpoint = Endpoint(D0)
    says(endpoint, pages(free=1))
    with Reservation(endpoint, 1500, reads=False):
        left = kv_free_after(CALL, endpoint)

    assert left is not None
    assert left < -0.5


def test_calls_that_shared_pages_and_have_ended_leave_no_more_free_than_there_is() -> None:
    endpoint = Endpoint(D0)
    with Reservation(endpoint, 400, reads=False), Reservation(endpoint, 400, reads=False):
        says(endpoint, pages(free=0.5))

    assert kv_free_after(CALL, endpoint) == 1 - CALL.prompt_tokens / 1000


def test_nothing_is_said_of_the_kv_of_an_engine_whose_size_is_unknown() -> None:
    endpoint = Endpoint(D0)
    says(endpoint, Status(kv_free=0.5))

    assert kv_free_after(CALL, endpoint) is None
    assert kv_free_after(CALL, Endpoint(D0)) is None


numbers = st.integers(0, 1 << 40)
counts = st.none() | numbers
accounts = st.builds(Account, numbers, numbers, numbers)
statuses = st.builds(
    Status,
    kv_free=st.none() | st.floats(0, 1),
    running=counts,
    waiting=counts,
    kv_tokens=counts,
    queued_tokens=counts,
)


@given(statuses, accounts, accounts)
def test_whatever_an_engine_says_our_account_is_the_floor(
    status: Status, asked: Account, now: Account
) -> None:
    found = beyond(status, asked, now)

    assert found.calls >= 0
    assert found.unread_tokens >= 0


@given(st.floats(0, 1), st.integers(0, 2000))
def test_whatever_it_says_of_its_pages_at_least_half_of_what_it_has_read_counts(
    free: float, tokens: int
) -> None:
    endpoint = Endpoint(D0, tokens=tokens)
    says(endpoint, pages(free))

    left = kv_free_after(CALL, endpoint)

    assert left is not None
    assert 1 - left >= tokens / 2 / 1000


def test_what_an_engine_says_of_its_steps_is_learnt() -> None:
    endpoint = Endpoint(D0)
    for running in (1, 11, 21) * 10:
        status = Status(running=running, step_seconds=0.01 + 0.001 * running)
        told(endpoint, status, Account.of(endpoint))

    assert endpoint.latency.step_seconds(21, 0) == pytest.approx(0.031, rel=0.1)


def test_who_answers_and_has_not_shown_its_pace_is_asked_soon() -> None:
    idle, answering = Endpoint(D0), [Endpoint(D0, answering=1) for _ in range(20)]
    shown = Endpoint(D0, answering=1)
    shown.latency.has_stepped(100, 0, 1.0, 1, 100)

    asked = unlearnt([idle, shown, *answering])

    assert asked == answering[: len(asked)]
    assert 1 < len(asked) < len(answering)


def test_calls_that_are_still_with_prefill_are_not_taken_for_what_its_steps_attend_to() -> None:
    endpoint = Endpoint(D0, calls=12, answering=8, tokens=120_000)
    for batch in range(1, 9):
        endpoint.calls, endpoint.answering, endpoint.tokens = batch + 4, batch, 10_000 * (batch + 4)
        for _ in range(3):
            says(endpoint, Status(running=batch, step_seconds=0.01 + 1e-7 * 10_000 * batch))

    expected = endpoint.latency.step_seconds(8, 80_000)
    assert expected == pytest.approx(0.018, rel=0.02)
    assert context_tokens_of(endpoint, 8) == 80_000
