"""Usage: what an engine says that a call took; the `usage` of its answer.

Read from the end of an answer. `"usage"` with its quotes cannot be part of a text, where they
would be escaped, and stands behind the choices.

    chat, completions      prompt_tokens, completion_tokens, prompt_tokens_details.cached_tokens
    responses, messages    input_tokens, output_tokens, ...cached_tokens, cache_read_input_tokens
    SGLang's outputs       as chats, in their meta_info

Source: vLLM 0.32.0, entrypoints/openai/engine/protocol.py, UsageInfo; OpenAI's and Anthropic's
references of their APIs.
"""

import re
from typing import Final

import msgspec

from pdgate.protocols.fields import UNREADABLE

LONGEST: Final = 2048
"""Bytes of a usage that are looked at."""

_NAME: Final = b'"usage"'
_META: Final = b'"meta_info"'
_counts = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens|input_tokens|output_tokens'
    rb'|cache_read_input_tokens)"\s*:\s*(\d{1,15})'
).findall


class Usage(msgspec.Struct):
    """Usage of a call in tokens; None where the engine does not say it.

    Attributes:
        cached: Of the prompt, what the engine had in its prefix cache.
    """

    prompt: int | None = None
    generated: int | None = None
    cached: int | None = None

    def as_json(self) -> dict[str, int | None]:
        return {"prompt": self.prompt, "generated": self.generated, "cached": self.cached}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _UsageSaid(msgspec.Struct):
    """Usage as chats and completions say it, which most calls are."""

    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Document(msgspec.Struct):
    usage: _UsageSaid


_read_said = msgspec.json.Decoder(_UsageSaid).decode
_read_document = msgspec.json.Decoder(_Document).decode


def usage_in(end: bytes) -> Usage | None:
    """The last one in the end of an answer; None if there is none, or one without numbers."""
    document = end
    if not end.startswith(b"{"):
        start = end.rfind(_NAME)
        if start < 0:
            start = end.rfind(_META)
            return None if start < 0 else _counts_anywhere(end[start:])
        # The line of the event that it is in.
        document = end[end.rfind(b"data:", 0, start) + 5 : end.find(b"\n", start)]
    try:
        said = _read_document(document).usage
    except UNREADABLE:
        # None, one of another shape, or half a document, as the beginning of a long one is not kept.
        start = end.rfind(_NAME)
        return None if start < 0 else _counts_anywhere(end[start : start + LONGEST])
    return _usage(said)


def _usage(said: _UsageSaid) -> Usage:
    details = said.prompt_tokens_details
    cached = None if details is None else details.cached_tokens
    return Usage(said.prompt_tokens, said.completion_tokens, cached)


def counts_in(usage: bytes) -> Usage | None:
    """Usage in the JSON object itself, in whatever shape."""
    try:
        said = _read_said(usage)
    except UNREADABLE:
        return _counts_anywhere(usage)
    # Some say elsewhere what was cached.
    details = said.prompt_tokens_details
    if details is None and usage.find(b"cache") >= 0:
        return _counts_anywhere(usage)
    return _usage(said)


def _counts_anywhere(usage: bytes) -> Usage | None:
    found = {name: int(count) for name, count in _counts(usage[:LONGEST])}
    if not found:
        return None
    return Usage(
        found.get(b"prompt_tokens", found.get(b"input_tokens")),
        found.get(b"completion_tokens", found.get(b"output_tokens")),
        found.get(b"cached_tokens", found.get(b"cache_read_input_tokens")),
    )
