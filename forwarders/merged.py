"""Decode's answer with prefill's first token in front of it."""

import asyncio
from dataclasses import dataclass

from pdgate.forwarders.base import Answer, Merge, Sink
from pdgate.protocols.call import Headers, Json
from pdgate.protocols.errors import GatewayError


@dataclass(frozen=True, slots=True)
class Merging:
    """What is to be merged into decode's answer, once there is one."""

    merge: Merge
    prefilling: asyncio.Task[Json]

    def of(self, answer: Answer) -> "Merged":
        return Merged(answer, self.merge, self.prefilling)


class Merged:
    """An Answer whose bytes go through a Merge; also the sink of the answer behind it.

    Its length is not the length that decode announced.
    """

    def __init__(self, answer: Answer, merge: Merge, prefilling: asyncio.Task[Json]) -> None:
        self.status = answer.status
        self.headers: Headers = [h for h in answer.headers if h[0] != b"content-length"]
        self._answer = answer
        self._merge = merge
        self._prefilling = prefilling
        self._early: bytes | None = None
        self._sink: Sink | None = None
        self._failed = False

    async def ready(self, beyond: int = 0) -> bytes:
        """The first token as soon as prefill has it; else what decode says first."""
        if self._early is None:
            self._early = self._merge.first(await self._prefilling)
        return self._early or await self._answer.ready(beyond)

    def start(self, sink: Sink) -> None:
        self._sink = sink
        if self._early:
            sink.data(self._early)
        self._answer.start(self)

    def pause(self) -> None:
        self._answer.pause()

    def resume(self) -> None:
        self._answer.resume()

    def data(self, chunk: bytes) -> None:
        assert self._sink is not None
        if self._failed:
            return
        try:
            merged = self._merge.feed(chunk)
        except GatewayError as error:
            self._fail(error)
            return
        if merged:
            self._sink.data(merged)

    def ended(self, error: GatewayError | None) -> None:
        assert self._sink is not None
        if self._failed:
            return
        if error is None and (rest := self._merge.end()):
            self._sink.data(rest)
        self._sink.ended(error)

    def _fail(self, error: GatewayError) -> None:
        """The two engines contradict each other: the answer ends here."""
        assert self._sink is not None
        self._failed = True
        self._sink.ended(error)
