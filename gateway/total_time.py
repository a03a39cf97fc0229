"""Total time of a call: its time in a queue, all its attempts, and its answer.

Other limits are about engines that do nothing. This one also ends calls that go well, so it is
off unless it is asked for; an answer that has begun ends with an error event.

The limit is one of those that the coarse clock looks at (deadlines.py), and not a timer of its
own: asyncio.timeout costs as much as a tenth of a short call.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Final

from pdgate.gateway.deadlines import Deadlines
from pdgate.protocols.errors import CallTooLong


class TotalTime:
    """Limits on the total time of calls, on one event loop."""

    def __init__(self, seconds: float | None, of_models: Mapping[str | None, float | None]) -> None:
        """`seconds`: for models that are not in `of_models`; None is no limit."""
        self._seconds = seconds
        self._of_models = of_models
        self._deadlines: Deadlines | None = None

    @property
    def limits_any(self) -> bool:
        return any(each is not None for each in (self._seconds, *self._of_models.values()))

    def seconds_of(self, model: str | None) -> float | None:
        return self._of_models.get(model, self._seconds)

    def limit(self, model: str | None) -> AbstractContextManager[object]:
        """A block of the current task, which begins at once. Raises CallTooLong."""
        seconds = self._seconds
        if self._of_models:
            seconds = self._of_models.get(model, seconds)
        if seconds is None:
            return NO_LIMIT
        if self._deadlines is None:
            # Not earlier: there is no loop yet where the gateway is put together.
            self._deadlines = Deadlines(asyncio.get_running_loop())
        limit = _Limit(seconds, self._deadlines)
        self._deadlines.watch(limit, seconds)
        return limit


NO_LIMIT: Final = nullcontext()


class _Limit:
    """A call as `Deadlines` sees it: nothing that it does makes its limit begin anew."""

    __slots__ = ("_cancelled_before", "_deadlines", "_over", "_task", "due", "seconds", "seen")

    def __init__(self, seconds: float, deadlines: Deadlines) -> None:
        self.seconds = seconds
        self.seen = False
        self.due = 0.0
        self._deadlines = deadlines
        self._over = False
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled_before = task.cancelling()

    def expired(self) -> None:
        self._over = True
        self._task.cancel()

    def __enter__(self) -> None:
        """It is watched already."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # As a method it would be looked up anew each time.
        forget = self._deadlines.forget
        forget(self)
        # Where the client left as well, the task is cancelled for that, too, and stays so.
        if (
            self._over
            and self._task.uncancel() <= self._cancelled_before
            and isinstance(error, asyncio.CancelledError)
        ):
            raise CallTooLong(f"the call took longer than {self.seconds:g} s") from None
