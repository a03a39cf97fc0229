"""What a relay makes of an engine's events, as the exchange with that engine lets them through."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.forwarders.base import Leg
from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.forwarders.resuming.relay import MOST_HELD_BYTES, Relay
from pdgate.protocols import sse
from pdgate.protocols.call import COMPLETIONS, Call, encode
from pdgate.protocols.endings import ending_of
from pdgate.protocols.errors import EngineFailed, GatewayError
from tests.support.scripted import D0, ScriptedAnswer, call_of


class Client:
    def __init__(self) -> None:
        self.got = b""
        self.ends: list[GatewayError | None] = []

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        assert not self.ends
        self.got += chunk

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        self.got += last
        self.ends.append(error)


def relay_of(call: Call, journal: StreamJournal) -> tuple[Relay, Client]:
    answer = ScriptedAnswer(Leg(D0, COMPLETIONS, {}), asyncio.Event())
    relay = Relay(answer, journal, "d0", call, rewrite=None, shows_ids=False, counts=True)
    client = relay.client = Client()
    return relay, client


def ask(**fields: object) -> Call:
    return call_of(encode({"model": "m", "prompt": "hi", "stream": True, **fields}), COMPLETIONS)


def chunk(text: str, *tokens: int, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish, "token_ids": tokens}
    head = {"id": "one", "object": "text_completion", "created": 1, "model": "m"}
    return sse.event({**head, "choices": [{**choice, "prompt_token_ids": [7]}], **more})


def usage(count: int) -> bytes:
    return sse.event({"choices": [], "usage": {"completion_tokens": count}})


chunks = st.builds(
    lambda text, tokens, index, finish: chunk(text, *tokens, index=index, finish=finish),
    st.sampled_from(["", "a"]),
    st.lists(st.integers(0, 9), max_size=2),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([None, None, "", "stop", "length", "abort"]),
)
# One too long to be read where it does not say its index.
long = b'data: {"choices":[{"text":"%b","finish_reason":"stop","token_ids":[1]}]}\n\n' % (
    b"a" * 300_000
)
events = chunks | st.sampled_from(
    [sse.DONE, b": ping\n\n", usage(2), sse.event({"error": {"message": "boom"}}), long]
)


@given(
    st.sampled_from([{}, {"n": 2}, {"n": "2"}, {"prompt": ["a", "b"]}]),
    st.lists(events, max_size=5),
    st.booleans(),
)
def test_nothing_is_called_whole_that_does_not_end(
    fields: dict[str, Any], said: list[bytes], breaks: bool
) -> None:
    """Whether or not the call could be resumed: the end of an answer is read in one way."""
    call = ask(**fields)
    ending = ending_of(call)
    relay, client = relay_of(call, StreamJournal())
    for event in [chunk("a", 1), *said]:
        shown = ending.take(event)
        if ending.gave_up or ending.error:
            break
        relay.data(shown)
    failed = breaks or ending.gave_up or ending.error or not ending.whole
    if not client.ends:
        relay.ended(EngineFailed("broke off") if failed and not ending.over else None)

    assert len(client.ends) == 1
    if sse.DONE in client.got or client.ends == [None]:
        assert ending.whole
    assert client.got.count(sse.DONE) <= 1 + said.count(sse.DONE)


def test_a_usage_before_the_end_is_not_that_of_the_whole() -> None:
    """It came while a token waited for its text, and is forgotten with it."""
    journal = StreamJournal()
    first, client = relay_of(ask(), journal)
    first.data(chunk("a", 1) + chunk("", 2) + usage(2))
    first.ended(EngineFailed("broke off"))
    assert client.got == chunk("a", 1).replace(b',"token_ids":[1],"prompt_token_ids":[7]', b"")
    journal.forget()
    second, client = relay_of(ask(), journal)

    second.data(chunk("b", 3, finish="stop"))
    second.ended(EngineFailed("broke off"))

    assert client.ends == [None]
    assert client.got.endswith(sse.DONE)
    assert client.got.count(b'"completion_tokens":2') == 1


def test_what_waits_for_text_has_bounds() -> None:
    relay, client = relay_of(ask(), StreamJournal())
    ping = b": %b\n\n" % (b"p" * (MOST_HELD_BYTES // 2))

    relay.data(chunk("", 1) + ping)
    assert client.got == b""
    relay.data(ping)
    assert client.got.count(ping) == 2


@pytest.mark.parametrize("wrong", [b"data: {\n\n", sse.event({"error": {"message": "boom"}})])
def test_what_comes_behind_the_end_spoils_nothing(wrong: bytes) -> None:
    """Another engine was asked to go on behind it."""
    relay, client = relay_of(ask(), StreamJournal())

    relay.data(chunk("a", 1, finish="stop") + sse.DONE + wrong)
    relay.ended(EngineFailed("broke off"))

    assert client.ends == [None]
    assert client.got.count(sse.DONE) == 1
