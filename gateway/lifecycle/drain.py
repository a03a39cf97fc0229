"""Drain: the end of a process, without losing a call.

    begin() --> /ready says 503, new calls get 503 and Retry-After, on connections that close
            --> notice_seconds later at the earliest, when no call runs: finish()
            --> grace_seconds later, calls or not:                      finish()

The end is a timer of the event loop, set when the drain begins, so it comes whatever became of
background jobs. The listening socket stays open meanwhile: what routes traffic here may
not have looked at /ready yet, and a refused connection would say less than a 503.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from pdgate.protocols.errors import Draining

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
RETRY_AFTER_SECONDS = 1
"""Another replica can take the call at once."""


class Drain:
    """
    Attributes:
        grace_seconds, notice_seconds: See above; they may be changed until it begins.
        began: Monotonic seconds; None while calls are taken.
        finish: Called once, when it is over.
        pass_on: Begins it in the other processes of this gateway.
        last_words: Called once before `finish`: what is to be said to those that are cut.
    """

    def __init__(
        self,
        calls: Callable[[], int],
        grace_seconds: float,
        notice_seconds: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`calls`: how many run."""
        self.grace_seconds = grace_seconds
        self.notice_seconds = notice_seconds
        self.began: float | None = None
        self.finish: Callable[[], None] = _nothing
        self.pass_on: Callable[[], None] = _nothing
        self.last_words: Callable[[], None] = _nothing
        self._calls = calls
        self._clock = clock
        self._ended = False

    def begin(self) -> None:
        """Begin the drain, in the event loop. Doing it again changes nothing."""
        if self.began is not None:
            return
        self.began = self._clock()
        loop = asyncio.get_running_loop()
        # First of all, so that nothing that comes after it can keep the process from its end.
        loop.call_later(max(self.grace_seconds, self.notice_seconds), self._end)
        loop.call_soon(self._look, loop)
        log.info("no new calls from now on; %d run", self._calls())

    def refusal(self) -> Draining:
        return Draining(
            "the gateway is shutting down and takes no more calls",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )

    @property
    def over(self) -> bool:
        """Whether the process may end."""
        if self.began is None:
            return False
        seconds = self._clock() - self.began
        if seconds >= max(self.grace_seconds, self.notice_seconds):
            return True
        return seconds >= self.notice_seconds and not self._calls()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # A drain is rare and short, and what runs is a number: looking costs less than an event.
        if self.over:
            self._end()
        elif not self._ended:
            loop.call_later(LOOK_SECONDS, self._look, loop)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            if left := self._calls():
                log.warning("%d calls still ran after %g s, and are cut", left, self.grace_seconds)
            self.last_words()
        finally:
            self.finish()


def _nothing() -> None: ...
