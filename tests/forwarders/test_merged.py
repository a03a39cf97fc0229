"""A merged answer keeps the contract of an answer."""

import asyncio

import pytest

from pdgate.forwarders.base import Merge
from pdgate.forwarders.merged import Merged
from pdgate.protocols.call import Headers, Json
from pdgate.protocols.errors import EngineFailed
from tests.support.by_hand import ByHand
from tests.support.sinks import Collected


class Loud(Merge):
    """Prefill's word first, then decode's in capitals, then a full stop."""

    def first(self, reply: Json) -> bytes:
        word: bytes = reply["word"]
        return word

    def feed(self, chunk: bytes) -> bytes:
        if b"?" in chunk:
            raise EngineFailed("they disagree")
        return chunk.upper()

    def end(self) -> bytes:
        return b"."


STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"),)


async def begun(word: bytes = b"", headers: Headers = STREAM) -> tuple[ByHand, Collected]:
    async def prefill() -> Json:
        return {"word": word}

    answer, sink = ByHand(headers=headers), Collected()
    merged = Merged(answer, Loud(), asyncio.create_task(prefill()))
    await merged.ready()
    merged.start(sink)
    return answer, sink


async def test_all_parts_come_in_order() -> None:
    answer, sink = await begun(b"early ")
    answer.data(b"a")
    answer.data(b"b")
    answer.ended(None)

    assert await sink.body() == b"early AB."


async def test_an_answer_that_is_no_stream_has_no_early_word() -> None:
    """The word would go out under its head."""
    answer, sink = await begun(b"early ", [(b"content-type", b"application/json")])
    answer.data(b"a")
    answer.ended(None)

    assert await sink.body() == b"A."


async def test_the_last_piece_may_come_with_the_end() -> None:
    answer, sink = await begun()
    answer.data(b"a")
    answer.ended(None, b"b")

    assert await sink.body() == b"AB."


async def test_without_an_early_word_decode_says_what_is_ready() -> None:
    async def prefill() -> Json:
        return {"word": b""}

    merged = Merged(ByHand(), Loud(), asyncio.create_task(prefill()))

    assert await merged.ready() == b"decode's own"


async def test_a_cut_answer_has_no_proper_end() -> None:
    answer, sink = await begun()
    answer.data(b"a")
    answer.ended(EngineFailed("cut"))

    with pytest.raises(EngineFailed, match="cut"):
        await sink.body()
    assert sink.chunks == [b"A"]


@pytest.mark.parametrize("with_the_end", [False, True])
async def test_a_disagreement_ends_it_once(with_the_end: bool) -> None:
    """Whatever decode goes on to say; a second end would break the contract."""
    answer, sink = await begun()
    answer.data(b"a")
    if not with_the_end:
        answer.data(b"?")
        answer.data(b"b")
    answer.ended(None, b"?")

    with pytest.raises(EngineFailed, match="disagree"):
        await sink.body()
    assert sink.chunks == [b"A"]


async def test_its_length_is_not_promised() -> None:
    merged = Merged(ByHand(), Loud(), asyncio.create_task(asyncio.sleep(0, {})))

    assert merged.headers == [(b"content-type", b"text/plain")]


async def test_a_slow_client_slows_decode() -> None:
    answer = ByHand()
    merged = Merged(answer, Loud(), asyncio.create_task(asyncio.sleep(0, {})))

    merged.pause()
    merged.resume()

    assert answer.told == ["pause", "resume"]
