"""The filter of an answer's body: an Answer around another, and the sink of the one behind it.

    engine's answer --data, ended--> BodyFilter --data, ended--> the client's side
                    <--pause, resume--

A subclass reads or changes what passes: `merged.py` puts the first token of prefill in front,
`WatchedBody` times the pieces for the engine's pace, `gateway/metrics/gaps.py` for the client's,
`resuming/relay.py` keeps what another engine needs to go on.
"""

from collections.abc import Callable
from typing import Final

from pdgate.forwarders.base import Answer, Sink
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError
from pdgate.scheduling.watch import StreamWatch

EVENT_END: Final = b"\n\n"
CRLF_END: Final = b"\n\r\n"


class BodyFilter:
    """
    Attributes:
        answer: The one behind.
        client: The sink in front; there from `start` on.
    """

    __slots__ = ("answer", "client", "headers", "status")

    def __init__(self, answer: Answer, *, same_length: bool = True) -> None:
        """`same_length`: the body stays as long as the answer's head says."""
        self.status = answer.status
        self.headers: Headers = answer.headers
        if not same_length:
            self.headers = [header for header in answer.headers if header[0] != b"content-length"]
        self.answer = answer
        self.client: Sink

    async def ready(self, beyond: int = 0) -> bytes:
        return await self.answer.ready(beyond)

    def start(self, sink: Sink) -> None:
        self.client = sink
        self.answer.start(self)

    def pause(self) -> None:
        self.answer.pause()

    def resume(self) -> None:
        self.answer.resume()

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        self.client.data(chunk, framed)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        self.client.ended(error, last)


class WatchedBody(BodyFilter):
    """Times the pieces, for the pace of the engine that streams them, and changes nothing.

    What is said with the end may be usage and "[DONE]", which are no steps.
    """

    __slots__ = ("_clock", "_watch")

    def __init__(self, answer: Answer, watch: StreamWatch, clock: Callable[[], float]) -> None:
        super().__init__(answer)
        self._watch = watch
        self._clock = clock

    def pause(self) -> None:
        self._watch.interrupted()
        self.answer.pause()

    def resume(self) -> None:
        self._watch.interrupted()
        self.answer.resume()

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        # Several steps, if the gateway was too busy to read after each.
        self._watch.pieces(chunk.count(EVENT_END) or chunk.count(CRLF_END) or 1, self._clock())
        self.client.data(chunk, framed)
