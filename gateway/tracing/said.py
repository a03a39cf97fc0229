"""What an answer says of itself, read from its end. Only of calls that are traced."""

from typing import NamedTuple

import msgspec

from pdgate.protocols import sse


class Said(NamedTuple):
    """Empty where the end of the answer does not say it."""

    id: str = ""
    model: str = ""
    finish_reasons: tuple[str, ...] = ()


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """A whole answer, or an event of a stream, as far as it is of interest."""

    id: str = ""
    model: str = ""
    choices: list[_Choice] = []


_read = msgspec.json.Decoder(_Chunk)


def said_in(end: bytes) -> Said:
    """`end` has whole events, or a whole answer."""
    if end.startswith(b"{"):
        documents = [end]
    else:
        documents = [sse.payload(event) for event in sse.Splitter().feed(end)]
    said, reasons = Said(), []
    for document in documents:
        try:
            chunk = _read.decode(document)
        except msgspec.DecodeError:
            # "[DONE]", an event of another shape, or the second half of a long answer.
            continue
        said = Said(chunk.id or said.id, chunk.model or said.model)
        reasons += [found for choice in chunk.choices if (found := choice.finish_reason)]
    return said._replace(finish_reasons=tuple(reasons))
