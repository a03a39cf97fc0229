"""First event of an answer: has it begun well? Until that is known, another engine can be asked."""

from pdgate.forwarders.base import Answer, Leg
from pdgate.protocols import named_events, native, openai
from pdgate.protocols.apis import RESPONSES, Api, Kind, Shape
from pdgate.protocols.call import Call, Raw
from pdgate.protocols.endings import choices_of, outputs_of
from pdgate.protocols.errors import EngineFailed, EngineGaveUp
from pdgate.protocols.fields import is_true
from pdgate.protocols.sampling import sampling_of

HELD_BYTES = 128 << 10
"""Of the first events of a stream, or of an answer that nothing is generated for."""

WHOLE_BYTES = 16 << 20
"""Of an answer that is generated and no stream: it is relayed when all of it is there."""


def good_whole(answer: bytes, leg: Leg, call: Call) -> Raw | None:
    """`answer`: of chat or completions, no stream, as long as it came.

    Half a JSON answer is of no use to a client, so it is held until it is whole, and can be had
    from another engine until then. Raises EngineFailed if it is bad.

    Returns its usage, raw, as openai.raise_unless_whole does.
    """
    if not answer:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    if len(answer) > WHOLE_BYTES:
        raise _too_large(leg)
    return openai.raise_unless_whole(
        answer, at=leg.to.id, stop=leg.body.get("stop"), choices=choices_of(call)
    )


async def good_start(answer: Answer, leg: Leg, call: Call) -> Raw | None:
    """Wait for the first bytes of any other answer that say something. Raise, and return, as above."""
    if call.api is not None and not (call.streams and _has_choices(call)):
        return await _good_start(answer, leg, call, call.api)
    first = await answer.ready()
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    if first.startswith(b"{"):
        # It was asked for a stream, and answers otherwise.
        return _whole(await answer.ready(WHOLE_BYTES), leg, call)
    read = 0
    # What has come of a stream is whole events.
    while openai.says_nothing_yet(first[read:]):
        more = await answer.ready(beyond=len(first))
        if len(more) == len(first):
            raise EngineGaveUp("the engine gave the call up", at=leg.to.id)
        first, read = more, len(first)
        if len(first) > HELD_BYTES:
            break
    if openai.may_have_failed(first):
        if openai.aborted(first):
            raise EngineGaveUp("the engine gave the call up", at=leg.to.id)
        openai.raise_stream_error(first, at=leg.to.id)
    return None


async def _good_start(answer: Answer, leg: Leg, call: Call, api: Api) -> Raw | None:
    """The same for other routes."""
    kind = api.kind
    # Engines write no streams of what they only read, whatever they are asked.
    streams = call.streams and kind is Kind.GENERATES
    whole = kind is Kind.GENERATES and not streams
    passes = kind is Kind.PASSES or kind is Kind.SOUNDS
    first = await answer.ready(WHOLE_BYTES if whole else 0 if streams or passes else HELD_BYTES)
    if passes:
        # It may be anything, and even nothing.
        return None
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    if whole:
        if len(first) > WHOLE_BYTES:
            raise _too_large(leg)
        if api.shape is Shape.NATIVE:
            return native.raise_unless_whole(first, at=leg.to.id, outputs=outputs_of(call))
        if _has_choices(call):
            return _whole(first, leg, call)
        later = call.path == RESPONSES and is_true(call.value("background"))
        named_events.raise_unless_whole(call.path, first, at=leg.to.id, later=later)
    elif not streams and _is_text(answer):
        if len(first) <= HELD_BYTES:
            # All of it is here, and HTTP has called it whole.
            openai.raise_unless_found(first, at=leg.to.id)
        elif not first.lstrip().startswith((b"{", b"[")):
            raise EngineFailed("the engine's answer is no JSON", at=leg.to.id)
    while streams and named_events.says_nothing_yet(first):
        more = await answer.ready(beyond=len(first))
        if len(more) == len(first) or len(more) > HELD_BYTES:
            break
        first = more
    if streams and api.shape is Shape.NATIVE:
        native.raise_stream_error(first, at=leg.to.id)
    elif streams:
        named_events.raise_stream_error(first, at=leg.to.id)
    return None


def _whole(answer: bytes, leg: Leg, call: Call) -> Raw | None:
    """Of one that has choices, and that was asked for by a call of any route. As above."""
    if call.api is None:
        return good_whole(answer, leg, call)
    if len(answer) > WHOLE_BYTES:
        raise _too_large(leg)
    return openai.raise_unless_whole(
        answer, at=leg.to.id, stop=sampling_of(call).get("stop"), choices=choices_of(call)
    )


def _has_choices(call: Call) -> bool:
    """Whether its answer ends as those of chats do, whole or streamed."""
    api = call.api
    return api is None or (api.kind is Kind.GENERATES and api.shape is Shape.OPENAI)


def _is_text(answer: Answer) -> bool:
    """Whether it can be read: vectors may be asked for as bytes."""
    return not any(
        (name == b"content-encoding" and said != b"identity")
        or (name == b"content-type" and said.startswith(b"application/octet-stream"))
        for name, said in answer.headers
    )


def _too_large(leg: Leg) -> EngineFailed:
    return EngineFailed("the engine sent too large an answer", at=leg.to.id)
