"""Turns that the workers of a gateway have in common: each is used once, by one of them, and not after it was forgotten."""

import os
from dataclasses import replace
from pathlib import Path
from time import time

from pdgate.forwarders.base import Leg
from pdgate.forwarders.read_back import KEPT_SECONDS, ChatTurn, KeptTurn, KvReadBack
from pdgate.gateway.sync.workers import SharedTurns
from pdgate.protocols.call import encode
from pdgate.protocols.fields import Raw
from tests.support.clock import Clock
from tests.support.scripted import P1, Scripted, call_of

KEY = b"k" * 16
KEPT = KeptTurn("p0", "d0", "m", 96, b"seal", b"{}", 450.0)
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "fine"}
IDS = list(range(100))


class Worker:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self.back = KvReadBack(Scripted(), clock, SharedTurns(folder))

    def turn(self, *messages: object) -> ChatTurn:
        call = call_of(encode({"model": "m", "messages": messages}))
        turn = self.back.turn(call, "")
        assert turn is not None
        return turn

    def keeps(self) -> None:
        """The first turn has been answered here."""
        turn = self.turn(USER)
        turn.prefilled("p0", {"prompt_token_ids": Raw(encode(IDS))})
        turn.said = b'{"remote_block_ids": [[1, 2, 3]], "remote_num_tokens": 120}'
        self.back.keep(turn, "d0")

    async def goes_on(self) -> bool:
        """Whether the next turn finds it, at a prefill engine that has not read it."""
        before = sum(self.back.outcomes.values())
        call = call_of(encode({"model": "m", "messages": [USER, ASSISTANT, USER]}))
        turn = self.turn(USER, ASSISTANT, USER)
        await self.back.asked(turn, call, Leg(P1, call.path, call.body), P1)
        return sum(self.back.outcomes.values()) > before


def clock() -> Clock:
    found = Clock()
    found.now = 100.0
    return found


def begun(folder: Path, time_: Clock) -> tuple[Worker, Worker]:
    pair = Worker(folder, time_), Worker(folder, time_)
    time_.now += 1
    return pair


async def test_a_turn_goes_on_at_another_worker_and_once(tmp_path: Path) -> None:
    one, other = begun(tmp_path, clock())
    one.keeps()

    assert await other.goes_on()
    assert not await other.goes_on()
    # What it still has in memory was taken.
    assert not await one.goes_on()


async def test_what_a_worker_takes_itself_no_other_has(tmp_path: Path) -> None:
    one, other = begun(tmp_path, clock())
    one.keeps()

    assert await one.goes_on()
    assert not await other.goes_on()


async def test_what_any_worker_has_forgotten_it_does_not_use(tmp_path: Path) -> None:
    """A decode engine that began anew, or has other weights: each worker hears of it by itself."""
    for what in ("d0", "m"):
        for forgets in (0, 1):
            time_ = clock()
            folder = tmp_path / f"{what}{forgets}"
            folder.mkdir()
            pair = begun(folder, time_)
            pair[0].keeps()
            time_.now += 1
            pair[forgets].back.forget(what)

            assert not await pair[1].goes_on()
            time_.now += 1
            pair[0].keeps()
            assert await pair[1].goes_on()


async def test_a_worker_that_began_later_uses_nothing_of_before(tmp_path: Path) -> None:
    """It has not heard what was forgotten by then."""
    time_ = clock()
    one, _ = begun(tmp_path, time_)
    one.keeps()
    time_.now += 1

    assert not await Worker(tmp_path, time_).goes_on()


async def test_what_is_too_old_is_not_used(tmp_path: Path) -> None:
    time_ = clock()
    one, other = begun(tmp_path, time_)
    one.keeps()
    time_.now += KEPT_SECONDS + 1

    await other.goes_on()
    assert other.back.outcomes["expired"] == 1
    assert not list((tmp_path / "turns").iterdir())


def test_one_of_those_that_take_a_turn_has_it(tmp_path: Path) -> None:
    one, other = SharedTurns(tmp_path), SharedTurns(tmp_path)
    one.put(KEY, KEPT)
    one.put(KEY, replace(KEPT, tokens=48))

    assert one.get(KEY) == other.get(KEY) == replace(KEPT, tokens=48)
    assert [one.take(KEY), other.take(KEY)] == [True, False]
    assert one.get(KEY) is None


def test_what_a_killed_worker_left_goes_when_another_begins(tmp_path: Path) -> None:
    SharedTurns(tmp_path).put(KEY, KEPT)
    [left] = (tmp_path / "turns").iterdir()
    SharedTurns(tmp_path)
    assert left.exists()

    old = time() - KEPT_SECONDS - 1
    os.utime(left, (old, old))
    SharedTurns(tmp_path)
    assert not left.exists()


def test_what_is_no_turn_is_none(tmp_path: Path) -> None:
    turns = SharedTurns(tmp_path)
    turns.put(KEY, KEPT)
    [path] = (tmp_path / "turns").iterdir()
    path.write_bytes(b"\xff")

    assert turns.get(KEY) is None


def test_no_room_is_no_turn_and_no_failed_call(tmp_path: Path) -> None:
    turns = SharedTurns(tmp_path)
    (tmp_path / "turns").rmdir()

    turns.put(KEY, KEPT)
    assert not turns.take(KEY)
