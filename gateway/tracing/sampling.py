"""Sampling: which calls are traced, and what is done for one while it is served: almost nothing.

The ids of legs are made before they are sent, as engines get them; all else is read from the
record when the call is over, and what takes time (spans, encoding, sending) is done by a thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import random
from time import time_ns
from typing import Any, NamedTuple

import msgspec

from pdgate.forwarders.record import LegRecord, Record
from pdgate.gateway.tracing import context
from pdgate.gateway.tracing.conventions import asked
from pdgate.protocols import sse
from pdgate.protocols.fields import UNREADABLE


class SaidOfAnswer(NamedTuple):
    """What an answer says of itself, read from its end; empty where that does not say it."""

    id: str = ""
    model: str = ""
    finish_reasons: tuple[str, ...] = ()


class _SampledChoice(msgspec.Struct):
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """A whole answer, or an event of a stream, as far as it is of interest."""

    id: str = ""
    model: str = ""
    choices: list[_SampledChoice] = []


_read = msgspec.json.Decoder(_Chunk)


def said_in(end: bytes) -> SaidOfAnswer:
    """`end` has whole events, or a whole answer."""
    if end.startswith(b"{"):
        documents = [end]
    else:
        documents = [sse.payload(event) for event in sse.Splitter().feed(end)]
    said, reasons = SaidOfAnswer(), []
    for document in documents:
        try:
            chunk = _read.decode(document)
        except UNREADABLE:
            # "[DONE]", an event of another shape, or the second half of a long answer.
            continue
        said = SaidOfAnswer(chunk.id or said.id, chunk.model or said.model)
        reasons += [found for choice in chunk.choices if (found := choice.finish_reason)]
    return said._replace(finish_reasons=tuple(reasons))


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that is over, as spans are made of it.

    Attributes:
        record: Without the body of the call.
        asked: Attributes of the request.
        clock_ns: To be added to the record's times, to have nanoseconds since 1970.
    """

    trace: "CallTrace"
    record: Record
    asked: Mapping[str, Any]
    said: SaidOfAnswer
    clock_ns: int


class CallTrace:
    """The Trace contract.

    Attributes:
        id, span: Of the whole and of the call itself, hexadecimal.
        parent: The span that the client called from; empty if it said none.
        state: As the client sent it.
    """

    __slots__ = ("_ended", "id", "parent", "span", "state")

    def __init__(
        self, id: str, parent: str, state: str, ended: Callable[[EndedCall], None]
    ) -> None:
        self.id = id
        self.parent = parent
        self.state = state
        self.span = context.new_span()
        self._ended = ended

    def headers(self, leg: LegRecord) -> Mapping[str, str]:
        leg.span = context.new_span()
        return {"traceparent": context.traceparent(self.id, leg.span)}

    def end(self, record: Record) -> None:
        call = record.call
        attributes, said = asked(call), said_in(record.end_of_answer)
        # Bodies are large, and what people wrote; they must not wait for a collector.
        record.call = msgspec.structs.replace(call, body={}, headers=(), blocks=None)
        clock_ns = time_ns() - round(record.clock() * 1e9)
        self._ended(EndedCall(self, record, attributes, said, clock_ns))


class Tracer:
    """Tracer of calls: those whose clients ask for it, and a share of the others.

    `ended` gets each that is over.
    """

    def __init__(self, ratio: float, ended: Callable[[EndedCall], None]) -> None:
        self._ratio = ratio
        self._ended = ended

    def of(self, record: Record) -> CallTrace | None:
        headers = record.call.headers
        parent = context.parent_in(headers)
        if parent is not None:
            if not parent.sampled:
                return None
            state = context.state_in(headers)
            return CallTrace(parent.trace, parent.span, state, self._ended)
        if random() >= self._ratio:
            return None
        return CallTrace(context.new_trace(), "", "", self._ended)
