"""One picture of the gateway a second, for any number of watchers: JSON, made on demand.

instances   as this process sees them; their calls are those of all workers
calls, KV, charts, in_flight   of all workers
workers     how many this tells of, and how many live and did not answer
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import Any

import msgspec

from pdgate import __version__
from pdgate.gateway.console.cards import More, cards
from pdgate.gateway.console.part import ConsolePart, OwnPart, whole
from pdgate.gateway.console.siblings import CALL, PART, Siblings
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.readiness import readiness
from pdgate.scheduling.endpoints import Endpoints

PERIOD_SECONDS = 1.0
GOOD_SECONDS = 0.8
"""For so long a picture is shown to others as well."""

_encode = msgspec.json.encode


class Snapshots:
    """
    Attributes:
        drain: What ends this process.
        run: What it needs all the time; None where it is the only worker.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        own: OwnPart,
        more: More,
        drain: Drain,
        folder: Path | None,
    ) -> None:
        """`folder` is shared by the workers of this gateway, where there are several."""
        self.drain = drain
        self._endpoints = endpoints
        self._own = own
        self._more = more
        self._siblings = None if folder is None else Siblings(folder, self._answer)
        self._last = b""
        self._made = 0.0
        self._making = asyncio.Lock()

    @property
    def run(self) -> Callable[[], Any] | None:
        return None if self._siblings is None else self._siblings.run

    async def latest(self) -> bytes:
        """A snapshot of at most GOOD_SECONDS."""
        async with self._making:
            if not self._last or monotonic() - self._made > GOOD_SECONDS:
                self._last = _encode(await self._make())
                self._made = monotonic()
            return self._last

    async def call(self, call_id: str) -> bytes | None:
        """The record of one of the last calls, whichever worker served it."""
        found = self._own.call(call_id)
        if found is not None:
            return _encode(found)
        if self._siblings is None:
            return None
        answers = await self._siblings.ask(CALL + _encode(call_id))
        return answers[0] if answers else None

    async def _make(self) -> dict[str, Any]:
        parts, silent = [self._own.now()], 0
        if self._siblings is not None:
            answers = await self._siblings.ask(PART)
            parts += [msgspec.json.decode(answer, type=ConsolePart) for answer in answers]
            silent = self._siblings.silent
        found = whole(parts)
        ready = readiness(self._endpoints)
        return {
            "at": round(time(), 3),
            "version": __version__,
            "ready": ready["ready"],
            "missing": ready["missing"],
            "draining": self.drain.began is not None,
            "workers": {"told": len(parts), "silent": silent},
            "instances": cards(self._endpoints, self._more, found["kv"]["stranded"]),
            **found,
        }

    def _answer(self, question: bytes) -> bytes:
        """For another worker. Raises ValueError for what is no question."""
        if question == PART:
            return _encode(self._own.now())
        if not question.startswith(CALL):
            raise ValueError("no such question")
        found = self._own.call(msgspec.json.decode(question.removeprefix(CALL), type=str))
        return b"" if found is None else _encode(found)
