"""How long a call may take in all: its time in a queue, all its attempts, and its answer.

Other limits are about engines that do nothing. This one also ends calls that go well, so it is
off unless it is asked for; an answer that has begun ends with an error event.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pdgate.protocols.errors import CallTooLong


class TotalTime:
    def __init__(self, seconds: float | None, of_models: Mapping[str | None, float | None]) -> None:
        """`seconds`: for models that are not in `of_models`; None is no limit."""
        self._seconds = seconds
        self._of_models = of_models

    @property
    def limits_any(self) -> bool:
        return any(each is not None for each in (self._seconds, *self._of_models.values()))

    @asynccontextmanager
    async def limit(self, model: str | None) -> AsyncIterator[None]:
        """Raises CallTooLong."""
        seconds = self._of_models.get(model, self._seconds)
        try:
            async with asyncio.timeout(seconds) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallTooLong(f"the call took longer than {seconds:g} s") from None
