"""Fields read of an event of a stream, by either endpoint; all else passes unread."""

import re
from typing import Any

import msgspec

from pdgate.protocols.chunks import MOST_DECODED_BYTES, TooManyChoices, is_costly


class Delta(msgspec.Struct):
    """What an engine's parsers make of the text beside `content` cannot be made elsewhere."""

    role: str | None = None
    content: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None

    @property
    def parsed(self) -> bool:
        return bool(
            self.reasoning
            or self.reasoning_content
            or self.tool_calls
            or self.function_call
            or self.refusal
        )


class ResumedChoice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    logprobs: Any = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @property
    def said(self) -> str:
        return (self.delta.content if self.delta is not None else self.text) or ""


class ResumedChunk(msgspec.Struct):
    """
    Attributes:
        error: An engine's last word, in place of all else.
        prompt_token_ids: A chat's; completions have them in the choice.
    """

    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    choices: list[ResumedChoice] = []
    prompt_token_ids: list[int] | None = None
    usage: Any = None
    error: Any = None


_read = msgspec.json.Decoder(ResumedChunk).decode

_IDS = re.compile(rb',\s*"(?:prompt_)?token_ids"\s*:\s*(?:null|\[[\d,\s]*\])')


def read(data: bytes) -> ResumedChunk:
    """Raises msgspec.DecodeError, also for one that takes too long."""
    if is_costly(data):
        raise TooManyChoices
    return _read(data)


def without_ids(event: bytes) -> bytes:
    """The event as the engine would have written it had the gateway not asked for ids.

    Inside a text the quotes would stand behind backslashes, so this cannot be text.
    """
    return event if len(event) > MOST_DECODED_BYTES else _IDS.sub(b"", event)
