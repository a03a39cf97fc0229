"""An answer whose pieces are counted on their way, for the pace of the engine that streams it."""

from collections.abc import Callable

from pdgate.forwarders.base import Answer, Sink
from pdgate.protocols.errors import GatewayError
from pdgate.scheduling.watch import Watch

EVENT_END = b"\n\n"


class Watched:
    """An Answer, and the sink of the one behind it; changes nothing."""

    __slots__ = ("_answer", "_clock", "_sink", "_watch", "headers", "status")

    def __init__(self, answer: Answer, watch: Watch, clock: Callable[[], float]) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self._answer = answer
        self._watch = watch
        self._clock = clock
        self._sink: Sink | None = None

    async def ready(self, beyond: int = 0) -> bytes:
        return await self._answer.ready(beyond)

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._answer.start(self)

    def pause(self) -> None:
        self._watch.interrupted()
        self._answer.pause()

    def resume(self) -> None:
        self._watch.interrupted()
        self._answer.resume()

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        # Several steps, if the gateway was too busy to read after each.
        self._watch.pieces(chunk.count(EVENT_END) or 1, self._clock())
        self._client().data(chunk, framed)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        # What is said with the end may be usage and "[DONE]", which are no steps.
        self._client().ended(error, last)

    def _client(self) -> Sink:
        assert self._sink is not None, "data comes after start"
        return self._sink
