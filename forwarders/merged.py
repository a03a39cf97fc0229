"""Answer of decode with prefill's first token in front of it."""

import asyncio
from dataclasses import dataclass

from pdgate.forwarders.base import Answer, Merge, Sink
from pdgate.forwarders.body_filter import BodyFilter
from pdgate.protocols.call import Json
from pdgate.protocols.errors import GatewayError


@dataclass(frozen=True, slots=True)
class Merging:
    """What is to be merged into decode's answer, once there is one."""

    merge: Merge
    prefilling: asyncio.Task[Json]

    def of(self, answer: Answer) -> "Merged":
        return Merged(answer, self.merge, self.prefilling)


class Merged(BodyFilter):
    """An answer whose bytes go through a Merge."""

    __slots__ = ("_early", "_failed", "_merge", "_prefilling")

    def __init__(self, answer: Answer, merge: Merge, prefilling: asyncio.Task[Json] | None) -> None:
        """`prefilling`: None where what it said first has gone out, or never will."""
        super().__init__(answer, same_length=False)
        self._merge = merge
        self._prefilling = prefilling
        self._early: bytes | None = None
        self._failed = False

    async def ready(self, beyond: int = 0) -> bytes:
        """The first token as soon as prefill has it; else what decode says first."""
        if self._early is None and self._prefilling is not None:
            reply = await self._prefilling
            # What goes out early goes under decode's head, which may be of an answer that is none.
            self._early = self._merge.first(reply) if _is_stream(self.answer) else b""
        return self._early or await self.answer.ready(beyond)

    def start(self, sink: Sink) -> None:
        if self._early:
            sink.data(self._early)
        super().start(sink)

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        merged = self._fed(chunk)
        if merged:
            self.client.data(merged)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        merged = self._fed(last) if last else b""
        if self._failed:
            return
        if error is None:
            try:
                merged += self._merge.end()
            except GatewayError as caught:
                error = caught
        self.client.ended(error, merged)

    def _fed(self, chunk: bytes) -> bytes:
        if self._failed:
            return b""
        try:
            return self._merge.feed(chunk)
        except GatewayError as error:
            # The two engines contradict each other: the answer ends here.
            self._failed = True
            self.client.ended(error)
            return b""


def _is_stream(answer: Answer) -> bool:
    return answer.status == 200 and any(
        name == b"content-type" and said.lower().startswith(b"text/event-stream")
        for name, said in answer.headers
    )
