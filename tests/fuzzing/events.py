"""A stream is cut into events at the same places, however it came, and no byte is lost."""

from pdgate.protocols import sse
from tests.fuzzing.cutting import cut

SEEDS = (
    b'data: {"id": "x"}\n\ndata: [DONE]\n\n',
    b"data: 1\r\n\r\n: ping\r\n\r\ndata: 2\n\r\n",
    b"event: error\ndata: a\ndata: b\n\nid: 3\n\n",
    b"data: half an event",
    b"\n\n\n\ndata:\n\n",
)


def check(data: bytes) -> None:
    _splits(data)
    _relays(data)


def _splits(data: bytes) -> None:
    at_once, cut_up = sse.Splitter(), sse.Splitter()
    events = at_once.feed(data)
    assert b"".join(events) + at_once.rest == data
    assert all(event.endswith((b"\n\n", b"\n\r\n")) for event in events)
    pieces = [event for piece in cut(data) for event in cut_up.feed(piece)]
    assert b"".join(pieces) + cut_up.rest == data
    assert cut_up.rest == at_once.rest or not at_once.rest
    for event in events:
        sse.payload(event)


def _relays(data: bytes) -> None:
    """What a client has at any time ends with an event, and in the end it has them all."""
    relay, sent = sse.WholeEvents(), b""
    for piece in cut(data):
        out = relay.feed(piece)
        assert not out or out.endswith((b"\n\n", b"\n\r\n"))
        assert b"".join(sse.events(out)) == out
        sent += out
    assert sent + relay.rest == data
    assert not relay.feed(b"")
