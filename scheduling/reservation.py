"""One leg's share of an engine's account, and what is learnt of the engine from it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.health.breaker import TRIAL
from pdgate.scheduling.prefix.lesson import Lesson
from pdgate.scheduling.watch import MOST_WATCHED, Watch


class Reservation:
    """An instance that counts as busy until the block, or `end`, is over."""

    __slots__ = (
        "_answering", "_candidate", "_ended", "_expected", "_freed", "_lesson", "_squares", "_to_read",
        "_tokens", "_trial", "_unread", "_watch", "_watches", "instance",
    )  # fmt: skip

    def __init__(
        self,
        candidate: Candidate,
        tokens: int,
        *,
        reads: bool,
        answering: bool = False,
        watches: bool = False,
        freed: Callable[[], None] | None = None,
        lesson: Lesson | None = None,
    ) -> None:
        """
        Args:
            reads: It computes the prompt itself.
            answering: Nobody will see its first token, so it counts as there.
            watches: Somebody wants to know of the engine's pace.
            freed: Told of the end.
            lesson: What it has of the prompt, where somebody keeps count of that.
        """
        self.instance = candidate.instance
        self._candidate = candidate
        self._tokens = tokens
        self._lesson = lesson
        self._unread = 0
        if reads:
            self._unread = tokens if lesson is None else tokens - lesson.cached_tokens
        self._ended = False
        self._freed = freed
        self._trial = candidate.breaker.state is TRIAL
        if self._trial:
            candidate.trials += 1
        candidate.calls += 1
        candidate.tokens += tokens
        candidate.unread_tokens += self._unread
        candidate.whole_calls += reads
        self._to_read = candidate.unread_tokens
        self._squares = 0.0
        self._expected: float | None = None
        if reads:
            candidate.own_unread_squares += self._unread * self._unread
            self._squares = candidate.unread_squares
            self._expected = candidate.predicts.prefill_seconds(self._to_read, self._squares)
        self._answering = answering
        candidate.answering += answering
        self._watches = watches
        self._watch: Watch | None = None
        if candidate.shared is not None:
            candidate.shared.changed(candidate)

    def has_read(self, seconds: float) -> Watch | None:
        """It took so long to read the prompt, and what came before it.

        Returns who is to be told of the pieces of a stream that begins with this, if anybody.
        """
        self._lesson = None
        self._candidate.predicts.has_read(self._to_read, self._squares, seconds, self._expected)
        self._read()
        return self._begin()

    def has_loaded(self, seconds: float) -> Watch | None:
        """It took so long to take over the KV that prefill had computed; returns the same."""
        self._lesson = None
        self._candidate.predicts.has_loaded(self._tokens, seconds)
        return self._begin()

    def withdraw(self) -> None:
        """The prompt was not sent there, or in vain: the end, and the engine has not got it."""
        lesson = self._lesson
        if lesson is not None:
            self._lesson = None
            lesson.take_back()
        self.end()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            candidate = self._candidate
            candidate.calls -= 1
            candidate.tokens -= self._tokens
            candidate.answering -= self._answering
            if self._watch is not None:
                self._watch.end()
            if self._trial:
                candidate.trials -= 1
            self._read()
            if candidate.shared is not None:
                candidate.shared.changed(candidate)
            if self._freed is not None:
                self._freed()

    def _begin(self) -> Watch | None:
        if not self._answering:
            self._answering = True
            self._candidate.answering += 1
            if self._watches and self._candidate.watched < MOST_WATCHED:
                self._watch = Watch(self._candidate)
        if self._candidate.shared is not None:
            self._candidate.shared.changed(self._candidate)
        return self._watch

    def _read(self) -> None:
        unread, candidate = self._unread, self._candidate
        if unread:
            candidate.unread_tokens -= unread
            candidate.own_unread_squares -= unread * unread
            candidate.read_tokens += unread
            self._unread = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        else:
            self.withdraw()
