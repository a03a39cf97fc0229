"""Reservation: one leg's share of an engine's account, and what is learnt of the engine from it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.health.breaker import TRIAL
from pdgate.scheduling.latency.model import TOKENS_PER_SECOND
from pdgate.scheduling.prefix.index import PrefixUpdate
from pdgate.scheduling.watch import MOST_WATCHED, StreamWatch


def ended_well(endpoint: Endpoint, worked: Callable[[str], None] | None) -> None:
    """Notes that a leg there has; `worked` makes of it what the breaker does."""
    endpoint.ended_well += 1
    breaker = endpoint.breaker
    # Else nothing would change.
    if worked is not None and (breaker.latest or breaker.state is TRIAL):
        worked(endpoint.instance.id)


class Reservation:
    """An instance that counts as busy until the block, or `end`, is over."""

    __slots__ = (
        "_answering",
        "_dropped",
        "_ended",
        "_endpoint",
        "_expected",
        "_freed",
        "_presumed",
        "_reads_only",
        "_squares",
        "_to_read",
        "_tokens",
        "_trial",
        "_unread",
        "_update",
        "_watch",
        "_watches",
        "_worked",
        "instance",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        tokens: int,
        reads: bool,
        answering: bool = False,
        watches: bool = False,
        freed: Callable[[], None] | None = None,
        update: PrefixUpdate | None = None,
        worked: Callable[[str], None] | None = None,
        reads_only: bool = False,
    ) -> None:
        """
        Args:
            reads: It computes the prompt itself.
            answering: Its first token cannot be seen, so it counts as there.
            watches: The rule for splitting asks for the engine's step time.
            freed: Told when the prompt has been read, or will not be.
            worked: Told of the instance, whose breaker may change by that a leg has ended well.
            update: Of the prefix index, where there is one: what the engine has of the prompt.
            reads_only: Then it ends, and `freed` is called at the end.
        """
        self.instance = endpoint.instance
        self._endpoint = endpoint
        self._tokens = tokens
        self._update = update
        self._ended = False
        self._freed = freed
        self._worked = worked
        self._presumed = False
        self._reads_only = reads_only
        trial = self._trial = endpoint.breaker.state is TRIAL
        if trial:
            endpoint.trials += 1
        endpoint.calls += 1
        if reads_only:
            endpoint.prefills += 1
        endpoint.tokens += tokens
        self._dropped = endpoint.dropped
        self._expected: float | None
        if reads:
            unread = self._unread = tokens if update is None else tokens - update.cached_tokens
            endpoint.unread_tokens += unread
            endpoint.own_unread_squares += unread * unread
            endpoint.whole_calls += 1
            to_read = self._to_read = endpoint.unread_tokens
            alone = endpoint.shared is None
            squares = endpoint.own_unread_squares if alone else endpoint.unread_squares
            self._squares = squares
            self._expected = endpoint.latency.prefill_seconds(to_read, squares)
            endpoint.latency.has_call()
        else:
            self._unread, self._to_read = 0, endpoint.unread_tokens
            self._squares, self._expected = 0.0, None
        self._answering = answering
        if answering:
            endpoint.answering += 1
        self._watches = watches
        self._watch: StreamWatch | None = None
        if endpoint.shared is not None:
            endpoint.shared.changed(endpoint)

    def has_read(self, seconds: float) -> StreamWatch | None:
        """Note how long reading the prompt took, with what came before it.

        Return the watch of the pieces of a stream that begins with this, or None.
        """
        update = self._update
        if update is not None:
            self._update = None
            update.confirm()
        endpoint = self._endpoint
        endpoint.shown_reads += 1
        # Else it took less than was to be read when it came, which says nothing of the engine.
        if self._dropped == endpoint.dropped:
            endpoint.latency.has_read(self._to_read, self._squares, seconds, self._expected)
        return self._answers()

    def presume_read(self) -> None:
        """The time for reading the prompt is over, and nothing shows whether it was: it counts as read.

        Nothing is learnt, and the engine has not got it if its call fails.
        """
        if self._unread:
            self._presumed = True
            self._endpoint.presumed += 1
            self._answers()

    def presume_end(self) -> None:
        """The same of an engine that reads and no more: the end, after which the prompt may still turn out not to be there."""
        update = self._update
        self._update = None
        self.end()
        self._update = update

    def read(self, seconds: float) -> None:
        """`has_read`, and the end: it was to read the prompt, and no more."""
        self.end()
        endpoint = self._endpoint
        endpoint.shown_reads += 1
        if self._dropped == endpoint.dropped:
            endpoint.latency.has_read(self._to_read, self._squares, seconds, self._expected)

    def has_loaded(self, seconds: float) -> StreamWatch | None:
        """Note how long taking over prefill's KV took; return the same."""
        update = self._update
        if update is not None:
            self._update = None
            update.confirm()
        watch = self._begin()
        self._endpoint.latency.has_loaded(self._tokens, seconds)
        return watch

    def was_read(self) -> None:
        """The prompt has been read, as the answer shows; nothing shows when."""
        self._endpoint.shown_reads += 1

    @property
    def unread_tokens(self) -> int:
        """Tokens of its prompt that the engine has still to compute."""
        return self._unread

    @property
    def reading_seconds(self) -> float:
        """Seconds that were expected for what was unread when it came, itself included."""
        expected = self._expected
        return self._to_read / TOKENS_PER_SECOND if expected is None else expected

    def drop_unread(self) -> None:
        """Its call gives way: the engine will have less to read than was expected of those behind it."""
        if self._unread:
            self._endpoint.dropped += 1

    def worked(self) -> None:
        """A leg has ended well there."""
        # `ended_well`, without a call of it for each leg.
        endpoint, worked = self._endpoint, self._worked
        endpoint.ended_well += 1
        breaker = endpoint.breaker
        if worked is not None and (breaker.latest or breaker.state is TRIAL):
            worked(endpoint.instance.id)

    def handed_over(self) -> None:
        """Note a good answer to a leg that names the KV of a prefill engine."""
        self._endpoint.handed_over += 1

    def withdraw(self) -> None:
        """The prompt was not sent there, or in vain: the end, and the engine has not got it."""
        update = self._update
        if update is not None:
            self._update = None
            update.take_back()
        self.end()

    def end(self) -> None:
        # It may be known for longer than its call is, whose body may be large.
        update = self._update
        if update is not None:
            self._update = None
            update.confirm()
        if not self._ended:
            self._ended = True
            endpoint = self._endpoint
            endpoint.calls -= 1
            if self._reads_only:
                endpoint.prefills -= 1
            endpoint.tokens -= self._tokens
            if self._answering:
                endpoint.answering -= 1
            if self._watch is not None:
                self._watch.end()
            if self._trial:
                endpoint.trials -= 1
            if self._presumed:
                endpoint.presumed -= 1
            unread = self._unread
            if unread:
                # `_read`, as above.
                endpoint.unread_tokens -= unread
                endpoint.own_unread_squares -= unread * unread
                endpoint.read_tokens += unread
                self._unread = 0
            if endpoint.shared is not None:
                endpoint.shared.changed(endpoint)
            # As a method it would be looked up anew each time.
            freed = self._freed
            # An answer's end says no more than that of its call does.
            if freed is not None and (unread or self._reads_only):
                freed()

    def _answers(self) -> StreamWatch | None:
        """It has read what was unread, and answers now."""
        if not self._unread:
            return self._begin()
        self._read()
        watch = self._begin()
        freed = self._freed
        if freed is not None and not self._reads_only:
            freed()
        return watch

    def _begin(self) -> StreamWatch | None:
        endpoint = self._endpoint
        if not self._answering:
            self._answering = True
            endpoint.answering += 1
            if self._watches and endpoint.watched < MOST_WATCHED:
                self._watch = StreamWatch(endpoint)
        if endpoint.shared is not None:
            endpoint.shared.changed(endpoint)
        return self._watch

    def _read(self) -> None:
        """What was unread is read, or never will be."""
        unread, endpoint = self._unread, self._endpoint
        endpoint.unread_tokens -= unread
        endpoint.own_unread_squares -= unread * unread
        endpoint.read_tokens += unread
        self._unread = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.withdraw()
        elif not self._ended or self._update is not None:
            self.end()
