"""Turns of connections: what has come and is not parsed yet is parsed in turn, a little in each turn of the loop.

One queue for all connections of clients of a process, and one for those to its engines. A slice of the worst kind,
chunks of two bytes, takes 10 ms; with 300 connections that have one each a turn of the event loop would take 3 s, and
a good client's call several of them. So all slices together have TURN_SECONDS, and one of them always runs.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

TURN_SECONDS: Final = 0.01


class Taker(Protocol):
    """One connection."""

    def take_turn(self) -> None:
        """Parses one slice, and asks again if there is more."""


class ParseTurns:
    def __init__(self) -> None:
        self._waiting: deque[Taker] = deque()
        self._giving = False

    @property
    def contended(self) -> bool:
        """A connection waits for its turn."""
        return bool(self._waiting)

    def ask(self, taker: Taker, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for one turn, behind those that have asked before."""
        if not (self._waiting or self._giving):
            loop.call_soon(self._give, loop)
        self._waiting.append(taker)

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        until = loop.time() + TURN_SECONDS
        waiting, self._giving = self._waiting, True
        try:
            # One that asks again is behind the others, and may have another turn before the time is over.
            while waiting:
                taker = waiting.popleft()
                taker.take_turn()
                if loop.time() >= until:
                    break
        finally:
            self._giving = False
            if waiting:
                loop.call_soon(self._give, loop)
