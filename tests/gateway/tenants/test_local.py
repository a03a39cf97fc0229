"""Accounts of tenants on one host: what fits beneath limits, and what is given back."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.security.token_limits import TokenLimit, TokenLimits
from pdgate.gateway.tenants import account, local, saved
from pdgate.gateway.tenants.account import NOTHING, ReservedTokens, TokenShortage, TokensTaken
from pdgate.gateway.tenants.local import LocalAccounts
from pdgate.gateway.tenants.saved import SavedAccounts
from tests.support.clock import Clock
from tests.support.waiting import until

NOON = 20_000 * 86_400 + 43_200


def limits(**said: Any) -> tuple[TokenLimit, ...]:
    return replace(TokenLimits(), **said).each()


def clock_at(seconds: float = NOON) -> Clock:
    clock = Clock()
    clock.now = seconds
    return clock


def enter(
    accounts: LocalAccounts,
    held_to: tuple[TokenLimit, ...],
    prompt: int,
    generated: int,
    name: str = "a",
) -> ReservedTokens:
    found = accounts.reserve(name, held_to, (prompt, generated)).result
    assert isinstance(found, ReservedTokens), found
    return found


def refused(
    accounts: LocalAccounts, held_to: tuple[TokenLimit, ...], prompt: int, generated: int
) -> TokenShortage:
    found = accounts.reserve("a", held_to, (prompt, generated)).result
    assert isinstance(found, TokenShortage), found
    return found


def test_calls_at_once_take_no_more_than_a_minute_has_and_give_back_what_they_did_not_use() -> None:
    held_to, accounts = limits(tokens_per_minute=1000), LocalAccounts(clock=clock_at())
    first = enter(accounts, held_to, 100, 400)
    enter(accounts, held_to, 100, 400)

    short = refused(accounts, held_to, 100, 400)
    accounts.settle("a", held_to, first, TokensTaken(100, 0, 20, counted=100))

    assert (short.limit.name, short.left) == ("tokens_per_minute", 0)
    assert short.seconds == pytest.approx(30)
    assert refused(accounts, held_to, 100, 400).left == 380
    enter(accounts, held_to, 100, 280)


def test_a_minute_runs_empty_at_the_rate_of_its_limit() -> None:
    clock = clock_at()
    held_to, accounts = limits(generated_tokens_per_minute=600), LocalAccounts(clock=clock)
    enter(accounts, held_to, 10**6, 600)
    assert refused(accounts, held_to, 0, 10).seconds == pytest.approx(1)

    clock.now += 1

    enter(accounts, held_to, 0, 10)
    refused(accounts, held_to, 0, 10)


def test_what_is_taken_beyond_a_reservation_is_a_debt() -> None:
    clock = clock_at()
    held_to, accounts = limits(tokens_per_minute=60), LocalAccounts(clock=clock)
    accounts.settle("a", held_to, enter(accounts, held_to, 0, 10), TokensTaken(0, 0, 180))
    clock.now += 119

    assert refused(accounts, held_to, 0, 60).seconds == pytest.approx(61)


def test_a_call_that_may_take_more_than_the_limit_runs_alone() -> None:
    held_to, accounts = limits(tokens_per_minute=1000), LocalAccounts(clock=clock_at())

    reserved = enter(accounts, held_to, 100, 1 << 40)
    refused(accounts, held_to, 1, 1)
    accounts.settle("a", held_to, reserved, TokensTaken(100, 0, 20, counted=100))

    enter(accounts, held_to, 100, 1 << 40)


def test_a_day_ends_at_midnight_and_a_budget_does_not() -> None:
    clock = clock_at()
    accounts = LocalAccounts(clock=clock)
    day, budget = limits(prompt_tokens_per_day=100), limits(budget_tokens=150)
    accounts.settle("a", day, enter(accounts, day, 90, 0), TokensTaken(90, 0, 10, counted=90))

    assert refused(accounts, day, 20, 0).seconds == 43_200
    assert enter(accounts, budget, 20, 0)
    clock.now += 43_200
    assert enter(accounts, day, 20, 0)
    short = refused(accounts, budget, 60, 0)
    assert (short.seconds, short.left, short.held) == (None, 50, False)


def test_what_running_calls_hold_of_a_budget_is_busy_and_not_gone() -> None:
    held_to, accounts = limits(budget_tokens=100), LocalAccounts(clock=clock_at())
    reserved = enter(accounts, held_to, 10, 60)

    assert refused(accounts, held_to, 10, 60).held
    accounts.settle("a", held_to, reserved, TokensTaken(10, 0, 1, counted=10))

    enter(accounts, held_to, 10, 60)


def test_cached_tokens_count_where_they_are_to() -> None:
    held_to, accounts = limits(budget_tokens=100), LocalAccounts(clock=clock_at())
    accounts.settle(
        "a", held_to, enter(accounts, held_to, 90, 5), TokensTaken(90, 80, 5, counted=10)
    )

    assert refused(accounts, held_to, 0, 86).left == 85
    view = accounts.look("a", held_to)
    assert list(view.numbers[account.OF_ALL :]) == [90, 80, 5, 1, 10]


def test_a_minute_that_gets_a_limit_later_begins_with_nothing() -> None:
    budget, minute = limits(budget_tokens=10**6), limits(tokens_per_minute=1000)
    accounts = LocalAccounts(clock=clock_at())
    for held_to in (budget, ()):
        accounts.settle("a", held_to, NOTHING, TokensTaken(9000, 0, 9000, counted=9000))

    enter(accounts, minute, 500, 500)


def test_whatever_engines_say_that_calls_took_is_counted() -> None:
    held_to, accounts = limits(tokens_per_minute=1000), LocalAccounts(clock=clock_at())
    for _ in range(40):
        accounts.settle(
            "a", held_to, NOTHING, TokensTaken(1 << 59, 1 << 59, 1 << 59, counted=1 << 59)
        )

    assert refused(accounts, held_to, 1, 1).left == 0


def test_workers_share_accounts_and_one_that_ended_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOOK_SECONDS", 0.0)
    held_to, clock = limits(budget_tokens=100), clock_at()
    one, other = (LocalAccounts(tmp_path, clock) for _ in "ab")
    enter(one, held_to, 10, 60)

    assert refused(other, held_to, 10, 60).held
    one.settle("a", held_to, NOTHING, TokensTaken(0, 0, 5))
    assert other.look("a", held_to).held == (10, 60)
    one.close()

    assert other.look("a", held_to).held == (0, 0)
    assert other.look("a", held_to).numbers[account.OF_ALL + 2] == 5
    enter(other, held_to, 10, 60)
    other.close()


def test_a_worker_that_stopped_with_the_lock_stops_no_other(tmp_path: Path) -> None:
    one, other = (LocalAccounts(tmp_path, clock_at()) for _ in "ab")
    with one._locked():
        enter(other, limits(budget_tokens=100), 10, 60)
    one.close()
    other.close()


def test_tenants_for_whom_there_is_no_row_are_counted_by_each_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "MOST_TENANTS", 2)
    monkeypatch.setattr(local, "MOST_ALONE", 2)
    held_to, accounts = limits(budget_tokens=100), LocalAccounts(clock=clock_at())
    for name in ("a", "b", "c", "d", "e"):
        reserved = enter(accounts, held_to, 10, 60, name)
        accounts.settle(name, held_to, reserved, TokensTaken(10, 0, 60, counted=10))

    assert isinstance(accounts.reserve("e", held_to, (10, 60)).result, TokenShortage)
    assert accounts.everything().keys() == {"a", "b"}
    assert len(accounts._alone) <= 2


def test_a_tenant_without_a_row_whose_call_runs_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its call was settled with a new account, which then owed tokens to all of its calls."""
    monkeypatch.setattr(local, "MOST_TENANTS", 0)
    monkeypatch.setattr(local, "MOST_ALONE", 2)
    held_to, accounts = limits(budget_tokens=100), LocalAccounts(clock=clock_at())
    running = {name: enter(accounts, held_to, 10, 60, name) for name in "abc"}
    for name, reserved in running.items():
        accounts.settle(name, held_to, reserved, TokensTaken(10, 0, 60, counted=10))

    for name in "abc":
        assert accounts.look(name, held_to).held == (0, 0)
    assert isinstance(accounts.reserve("c", held_to, (10, 60)).result, TokenShortage)


def test_what_was_taken_survives_a_restart_with_a_state_folder(tmp_path: Path) -> None:
    held_to = limits(budget_tokens=100)
    accounts = LocalAccounts(clock=clock_at())
    keeping = SavedAccounts(tmp_path, accounts.everything, lambda: accounts.changes)
    accounts.settle(
        "a", held_to, enter(accounts, held_to, 40, 60), TokensTaken(40, 5, 20, counted=40)
    )
    keeping.close()

    after = LocalAccounts(clock=clock_at(), saved=lambda: saved.read(tmp_path))

    assert list(after.look("a", held_to).numbers[account.OF_ALL :]) == [40, 5, 20, 1, 40]
    assert refused(after, held_to, 1, 40).left == 40


def test_what_is_saved_is_for_us_alone(tmp_path: Path) -> None:
    """It names tenants, and what each has taken."""
    before = os.umask(0)
    try:
        SavedAccounts(tmp_path, lambda: {"a": [0] * account.WORDS}, lambda: 1).close()
    finally:
        os.umask(before)

    assert [one.name for one in tmp_path.iterdir()] == [saved.FILE]
    assert (tmp_path / saved.FILE).stat().st_mode & 0o777 == 0o600


async def test_what_could_not_be_saved_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though nothing changes any more."""
    folder = tmp_path / "state"
    folder.write_text("in the way")
    keeping = SavedAccounts(folder, lambda: {"a": [7] * account.WORDS}, lambda: 1, 0.01)
    running = asyncio.create_task(keeping.run())
    await until(lambda: "cannot be saved" in caplog.text, "a failure")

    folder.unlink()

    await until((folder / saved.FILE).exists, "the next try")
    running.cancel()
    assert saved.read(folder) == {"a": [7] * account.WORDS}


async def test_what_is_saved_at_the_end_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a thread that was to save something older comes later."""
    changes = 1
    late: list[Callable[[], None]] = []

    async def never(write: Callable[..., None], *said: Any) -> None:
        late.append(partial(write, *said))
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "to_thread", never)
    keeping = SavedAccounts(
        tmp_path, lambda: {"a": [changes] * account.WORDS}, lambda: changes, 0.01
    )
    running = asyncio.create_task(keeping.run())
    await until(lambda: late, "a thread that has not begun")
    running.cancel()
    changes = 2
    keeping.close()

    late[0]()

    assert saved.read(tmp_path) == {"a": [2] * account.WORDS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 9000,
        "[]",
        '{"version": 2, "accounts": {}}',
        '{"version": 1, "accounts": []}',
        '{"version": 1, "accounts": {"a": [1], "b": "x", "": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}}',
        json.dumps(
            {"version": 1, "accounts": {"a": [True] * 15, "b": [-1] * 15, "c" * 99: [0] * 15}}
        ),
    ],
)
def test_a_saved_file_that_is_none_counts_from_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / saved.FILE).write_text(text)

    assert saved.read(tmp_path) == {}
