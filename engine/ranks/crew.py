"""Crew: the rank processes of an engine, seen from the engine's own process.

Orders go to all ranks, or to some, before the first answer is read, so they work side by side. A rank that ends, or that
says nothing for SILENCE_SECONDS, takes the others along: what it held of the KV cache is lost to every request.
"""

import contextlib
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from pdgate.engine.connector import EngineLost
from pdgate.engine.ranks.words import RankAnswer, RankEvent, RankOrder, RankReady, Start

START_SECONDS: Final = 120.0
SILENCE_SECONDS: Final = 15.0
END_SECONDS: Final = 15.0
"""A rank whose engine has hung up ends at once, or when it has closed its connector."""

log = logging.getLogger(__name__)

Heard = Callable[[int, RankEvent], None]
"""A rank's number, and what it says; on the crew's thread."""


class RankLost(EngineLost):
    """A rank's process is gone, and its part of the KV cache with it."""


class _RankProcess:
    def __init__(self, start: Start) -> None:
        """Start the process. Raise OSError."""
        self.number = start.place.number
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        try:
            # `-P`: what lies in the working directory must not be taken for our packages. A session of its
            # own: the terminal's interrupt is for the engine to answer.
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "pdgate.engine.ranks.process"),
                    *(str(end.fileno()) for end in theirs),
                ],
                pass_fds=[end.fileno() for end in theirs],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
        self.orders, self.events = (Connection(end.detach()) for end in ours)
        self.heard_at = time.monotonic()
        self._sending = threading.Lock()
        self._send(start)

    @property
    def name(self) -> str:
        return f"rank {self.number} (pid {self.process.pid})"

    def post(self, name: str, words: tuple[Any, ...], *, answers: bool = False) -> None:
        """Raise RankLost."""
        self._send(RankOrder(name, words, answers))

    def answer(self) -> RankAnswer:
        """Return what it says to the oldest order that has to be answered. Raise RankLost."""
        try:
            answer: RankAnswer = self.orders.recv()
        except (EOFError, OSError) as error:
            raise RankLost(f"{self.name} is gone") from error
        return answer

    def started(self, seconds: float) -> RankReady:
        """Return where it is. Raise ValueError, RankLost."""
        if not self.orders.poll(seconds):
            raise RankLost(f"{self.name} did not start within {seconds:.0f} s")
        answer = self.answer()
        if answer.refused:
            raise ValueError(f"rank {self.number}: {answer.refused}")
        ready: RankReady = answer.value
        return ready

    def end(self, seconds: float) -> None:
        """Hang up, and wait; whatever it does then, it is gone afterwards."""
        with self._sending:
            self.orders.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.events.close()

    def _send(self, word: Start | RankOrder) -> None:
        try:
            with self._sending:
                self.orders.send(word)
        except OSError as error:
            raise RankLost(f"{self.name} is gone") from error


class Crew:
    """
    Attributes:
        ready: What the ranks have said at their start, by their numbers.
        lost: Why the crew is not whole any more; empty while it is.
    """

    def __init__(self, starts: Sequence[Start]) -> None:
        """Start the processes. Raise OSError, ValueError, RankLost."""
        self.lost = ""
        self._ranks: list[_RankProcess] = []
        self._closing = threading.Event()
        self._later: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # An order that goes to all ranks is before or behind any other one at all of them.
        self._posting = threading.Lock()
        try:
            self._ranks.extend(map(_RankProcess, starts))
            until = time.monotonic() + START_SECONDS
            self.ready = [rank.started(max(0.0, until - time.monotonic())) for rank in self._ranks]
            workers = [each.worker for each in self.ready]
            self.ask("introduce", [(workers,)] * len(self._ranks))
        except BaseException:
            self.close()
            raise

    def watch(self, heard: Heard, lost: Callable[[str], None]) -> None:
        """Hear events from now on; `lost` is called once, when all ranks have ended because one has."""
        for target, words in ((self._watch, (heard, lost)), (self._do_later, ())):
            thread = threading.Thread(target=target, args=words, name="rank-crew", daemon=True)
            self._threads.append(thread)
            thread.start()

    def later(self, act: Callable[[], None]) -> None:
        """Call it on a thread that may wait for a rank, which that of events may not."""
        self._later.put(act)

    def post(self, name: str, *words: Any, to: Sequence[int] | None = None) -> None:
        """Say something to ranks, all if `to` names none. Raise RankLost."""
        with self._posting:
            for rank in self._chosen(to):
                rank.post(name, words)

    def ask(
        self, name: str, words: Sequence[tuple[Any, ...]], to: Sequence[int] | None = None
    ) -> list[RankAnswer]:
        """Return the answers to an order, of which each rank gets words of its own.

        From one thread at a time. Raise RankLost.
        """
        chosen = self._chosen(to)
        with self._posting:
            for rank, own in zip(chosen, words, strict=True):
                rank.post(name, own, answers=True)
        return [rank.answer() for rank in chosen]

    def __len__(self) -> int:
        return len(self._ranks)

    def close(self) -> None:
        """End the processes, and hear nothing of them any more."""
        self._closing.set()
        self._later.put(None)
        for thread in self._threads:
            # A rank that is frozen may hold one up until it is killed, below.
            thread.join(END_SECONDS)
        for rank in self._ranks:
            rank.end(END_SECONDS)

    def _chosen(self, to: Sequence[int] | None) -> list[_RankProcess]:
        if self.lost:
            raise RankLost(self.lost)
        return self._ranks if to is None else [self._ranks[number] for number in to]

    def _watch(self, heard: Heard, lost: Callable[[str], None]) -> None:
        by_events = {rank.events: rank for rank in self._ranks}
        for rank in self._ranks:
            rank.heard_at = time.monotonic()
        while not self._closing.is_set():
            for ready in wait(list(by_events), timeout=0.2):
                assert isinstance(ready, Connection)
                rank = by_events[ready]
                try:
                    event: RankEvent = ready.recv()
                except (EOFError, OSError):
                    if not self._closing.is_set():
                        status = self._ended(rank)
                        self._lose(f"{rank.name} has ended: {status}", lost)
                    return
                rank.heard_at = time.monotonic()
                heard(rank.number, event)
            # After what has been said meanwhile: this process may have been stopped itself.
            now = time.monotonic()
            for rank in self._ranks:
                if now - rank.heard_at > SILENCE_SECONDS and not rank.events.poll():
                    self._lose(f"{rank.name} has said nothing for {SILENCE_SECONDS:.0f} s", lost)
                    return

    @staticmethod
    def _ended(rank: _RankProcess) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = rank.process.wait(1.0)
            return f"killed by signal {-code}" if code < 0 else f"status {code}"
        return "it has hung up"

    def _lose(self, why: str, lost: Callable[[str], None]) -> None:
        log.error("%s: this engine cannot go on without it", why)
        self.lost = why
        for rank in self._ranks:
            rank.process.kill()
            # Callers that wait for an answer of a rank hear that there is none.
            rank.process.wait()
        lost(why)

    def _do_later(self) -> None:
        while (act := self._later.get()) is not None:
            try:
                act()
            except RankLost as error:
                log.info("not done any more: %s", error)
