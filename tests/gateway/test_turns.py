"""Connections whose input waits to be parsed have their turns one after the other."""

import asyncio

import pytest

from pdgate.gateway import turns
from pdgate.gateway.turns import ParseTurns


class Taker:
    """One with so many slices."""

    def __init__(self, name: str, slices: int, all_: ParseTurns, done: list[str]) -> None:
        self.name, self.slices, self._turns, self._done = name, slices, all_, done

    def take_turn(self) -> None:
        self._done.append(self.name)
        self.slices -= 1
        if self.slices:
            self._turns.ask(self, asyncio.get_running_loop())


async def test_one_slice_has_each_turn_of_the_loop_where_there_is_time_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    all_, done, loop = ParseTurns(), list[str](), asyncio.get_running_loop()
    for name, slices in (("a", 3), ("b", 1), ("c", 2)):
        all_.ask(Taker(name, slices, all_, done), loop)
    assert all_.contended

    had = []
    while all_.contended:
        await asyncio.sleep(0)
        had.append(len(done))

    assert "".join(done) == "abcaca"
    assert had == [1, 2, 3, 4, 5, 6]


async def test_all_have_theirs_in_one_turn_where_there_is_time() -> None:
    all_, done, loop = ParseTurns(), list[str](), asyncio.get_running_loop()
    for name in "abc":
        all_.ask(Taker(name, 2, all_, done), loop)

    await asyncio.sleep(0)

    assert "".join(done) == "abcabc"
    assert not all_.contended


async def test_one_that_fails_does_not_keep_the_others_from_theirs() -> None:
    class Fails:
        def take_turn(self) -> None:
            raise ZeroDivisionError

    all_, done, loop = ParseTurns(), list[str](), asyncio.get_running_loop()
    failed: list[object] = []
    loop.set_exception_handler(lambda _, what: failed.append(what.get("exception")))
    all_.ask(Fails(), loop)
    all_.ask(Taker("a", 1, all_, done), loop)

    for _ in range(2):
        await asyncio.sleep(0)

    assert done == ["a"]
    assert [type(error) for error in failed] == [ZeroDivisionError]
