"""Time between events of a stream, as its client gets them.

To look at the clock for every event would cost a tenth of what an event costs in all, so every
EVERY-th stream is measured, the first one of a process included:

    answer --data--> Measured --data--> the client's side
                       '--> the time, for each piece that ends an event
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from pdgate.forwarders.base import Answer
from pdgate.forwarders.body_filter import BodyFilter
from pdgate.forwarders.record import Record
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.protocols import sse
from pdgate.protocols.errors import GatewayError

EVERY: Final = 16
DONE_BYTES: Final = len(sse.DONE.replace(b"\n", b"\r\n"))
"""The longer one, whose lines end with CRLF."""
MOST_TIMES: Final = 32
"""That wait to be added up."""


class StreamGaps:
    """Gaps of one stream, however many engines answer it.

    Attributes:
        seconds: The sum of the gaps.
        count: How many there were.

    Args:
        histogram_of: Where they are counted; asked when the stream begins, as only then it is
            known which engine serves it.
    """

    __slots__ = ("_histogram_of", "_record", "_times", "count", "seconds")

    def __init__(self, record: Record, histogram_of: Callable[[Record], Histogram]) -> None:
        self._record = record
        self._histogram_of = histogram_of
        self._times: list[float] = []
        self.seconds = 0.0
        self.count = 0

    def of(self, answer: Answer) -> Answer:
        """The answer, whose pieces are timed and all of which passes."""
        return Measured(self, self._times, self._record.clock, answer)

    def add_up(self) -> None:
        times = self._times
        gaps = [after - before for before, after in pairwise(times)]
        self._histogram_of(self._record).add(gaps)
        self.seconds += sum(gaps)
        self.count += len(gaps)
        # The last one begins the next gap.
        del times[:-1]


class Measured(BodyFilter):
    __slots__ = ("_clock", "_gaps", "_times")

    def __init__(
        self, gaps: StreamGaps, times: list[float], clock: Callable[[], float], answer: Answer
    ) -> None:
        super().__init__(answer)
        self._gaps = gaps
        self._times = times
        self._clock = clock

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        # Half an event is none, and what is so short is "[DONE]".
        if len(chunk) > DONE_BYTES and chunk.endswith(sse.EVENT_ENDS):
            times = self._times
            times.append(self._clock())
            if len(times) > MOST_TIMES:
                self._gaps.add_up()
        self.client.data(chunk, framed)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        # What comes with the end is usage and "[DONE]", which are no steps.
        self._gaps.add_up()
        self.client.ended(error, last)
