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

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        merged = self._fed(chunk)
        if merged:
            self._client().data(merged)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        merged = self._fed(last) if last else b""
        if self._failed:
            return
        if error is None:
            merged += self._merge.end()
        self._client().ended(error, merged)

    def _fed(self, chunk: bytes) -> bytes:
        if self._failed:
            return b""
        try:
            return self._merge.feed(chunk)
        except GatewayError as error:
            # The two engines contradict each other: the answer ends here.
            self._failed = True
            self._client().ended(error)
            return b""

    def _client(self) -> Sink:
        assert self._sink is not None, "data comes after start"
        return self._sink
