"""An answer whose pieces a test pushes."""

from dataclasses import dataclass, field

from pdgate.forwarders.base import Sink
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import GatewayError


@dataclass
class ByHand:
    """The Answer contract.

    Attributes:
        told: "pause" and "resume", as they came.
    """

    status: int = 200
    headers: Headers = ((b"content-type", b"text/plain"), (b"content-length", b"3"))
    told: list[str] = field(default_factory=list)
    sink: Sink | None = None

    async def ready(self, beyond: int = 0) -> bytes:
        return b"decode's own"

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        assert self.sink is not None
        self.sink.data(chunk)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        assert self.sink is not None
        self.sink.ended(error, last)
