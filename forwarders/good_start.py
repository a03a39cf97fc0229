"""Has an answer begun well? Until that is known, another engine can still be asked."""

from pdgate.forwarders.base import Answer, Leg
from pdgate.protocols import named_events, openai
from pdgate.protocols.apis import Kind
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.errors import EngineFailed, EngineGaveUp

HELD_BYTES = 128 << 10
"""Of an answer that is not a stream, or of its first event, before it is relayed as it comes."""


def good_whole(first: bytes, leg: Leg) -> None:
    """`first`: of an answer of chat or completions that is no stream, once that much is there.

    Half a JSON answer is of no use to a client, so it is held until it is whole (or long),
    and can be had from another engine until then. Raises EngineFailed if it is bad.
    """
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    if openai.aborted(first):
        raise EngineGaveUp("the engine gave the call up", at=leg.to.id)


async def good_start(answer: Answer, leg: Leg, call: Call) -> None:
    """Of all others: waits for the first bytes that say something. Raises as above."""
    if call.api is not None:
        await _good_start(answer, leg, call, call.api.kind)
        return
    first = await answer.ready()
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    while openai.says_nothing_yet(first, chat=call.path == CHAT):
        more = await answer.ready(beyond=len(first))
        if len(more) == len(first) or len(more) > HELD_BYTES:
            break
        first = more
    if openai.aborted(first):
        raise EngineGaveUp("the engine gave the call up", at=leg.to.id)
    openai.raise_stream_error(first, at=leg.to.id)


async def _good_start(answer: Answer, leg: Leg, call: Call, kind: Kind) -> None:
    """The same for other routes."""
    passes = kind is Kind.PASSES
    first = await answer.ready(0 if call.streams or passes else HELD_BYTES)
    if passes:
        # It may be anything, and even nothing.
        return
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    while call.streams and named_events.says_nothing_yet(first):
        more = await answer.ready(beyond=len(first))
        if len(more) == len(first) or len(more) > HELD_BYTES:
            break
        first = more
    if call.streams:
        named_events.raise_stream_error(first, at=leg.to.id)
    elif len(first) <= HELD_BYTES and named_events.gave_up(call.path, first):
        raise EngineGaveUp("the engine gave the call up", at=leg.to.id)
