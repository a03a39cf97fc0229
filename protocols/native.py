"""SGLang's own answers, of /generate, as far as the gateway reads them.

    {"text": "...", "output_ids": [5, 6], "meta_info": {"finish_reason": {"type": "length", ...},
     "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0, ...}}

A list of them answers several prompts or choices; of a stream each event has one, with its `index`.
`finish_reason` is null until an output ends. An abort that has a `status_code` is a failure of the
engine or of the call. One that has none was asked of the engine (/abort_request, and a pause of a
training loop), whose client reads what there is so far: that output has ended.

Source: SGLang at 001067f, srt/managers/tokenizer_manager.py (_handle_abort_finish_reason,
_stream_batch_responses), srt/managers/schedule_batch.py (FINISH_ABORT), srt/entrypoints/http_server.py
(generate_request: it says of a wrong call, in a stream, {"error": {"message": ...}}).
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pdgate.protocols import sse
from pdgate.protocols.chunks import (
    LARGE_BYTES,
    TooManyChoices,
    has_too_many_choices,
    is_said,
    is_there,
    said,
)
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineRejected,
    GatewayError,
)
from pdgate.protocols.fields import UNREADABLE, Raw
from pdgate.protocols.internal import lenient
from pdgate.protocols.many_fields import has_too_many_containers

MOST_OUTPUTS: Final = 10_000
"""Of a long answer; each takes 3 us."""

_BUSY: Final = (429, 503)


class _Meta(msgspec.Struct):
    finish_reason: Raw = Raw()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class NativeOutput(msgspec.Struct):
    """One output, or a piece of one.

    Attributes:
        error: In place of all else.
    """

    meta_info: _Meta | None = None
    index: int = 0
    error: Raw = Raw()

    @property
    def has_ended(self) -> bool:
        return self.meta_info is not None and is_there(self.meta_info.finish_reason)


class _Full(NativeOutput, kw_only=True):
    """Output of a long answer, where those without an index or a reason would not be counted."""

    meta_info: _Meta


_read: Final = msgspec.json.Decoder(NativeOutput).decode
_read_outputs: Final = msgspec.json.Decoder(list[NativeOutput]).decode
_read_answer: Final = msgspec.json.Decoder(NativeOutput | list[NativeOutput]).decode
_read_long_answer: Final = msgspec.json.Decoder(_Full | list[_Full]).decode


def read_event(data: bytes) -> NativeOutput | None:
    """The payload of an event; None where it is of some other kind, and ends nothing."""
    try:
        return _read(data)
    except UNREADABLE:
        return None


def failure(output: NativeOutput, *, at: str = "") -> GatewayError | None:
    """What an output says went wrong, if it does."""
    if is_said(output.error):
        # Of what goes wrong with the engine itself it says nothing here.
        return _rejected(400, said(output.error) or "an error too long to be read", at)
    reason = None if output.meta_info is None else said(output.meta_info.finish_reason)
    if not isinstance(reason, dict) or reason.get("type") != "abort":
        return None
    status = reason.get("status_code")
    if not isinstance(status, int):
        return None
    if status in _BUSY:
        return EngineBusy("the engine had no room for the call", at=at)
    if 400 <= status < 500:
        return _rejected(status, {"message": reason.get("message")}, at)
    return EngineGaveUp("the engine gave the call up", at=at)


def raise_unless_whole(answer: bytes, *, at: str, outputs: int = 1) -> Raw:
    """`answer`: all of one that is no stream. Each of its `outputs` says why it ended.

    Returns its usage, in the words of chats.
    """
    try:
        all_of_them = _read_whole(answer)
    except UNREADABLE:
        all_of_them = _lenient(answer, at)
    for output in all_of_them:
        wrong = failure(output, at=at)
        if wrong is not None:
            raise wrong
        if not output.has_ended:
            raise EngineFailed("the engine's answer does not say why it ended", at=at)
    if len(all_of_them) < outputs:
        raise EngineFailed("the engine's answer has not all outputs", at=at)
    return _usage(all_of_them)


def _read_whole(answer: bytes) -> Sequence[NativeOutput]:
    """Raises msgspec.DecodeError; TooManyChoices, which is one."""
    found: NativeOutput | Sequence[NativeOutput]
    if len(answer) <= LARGE_BYTES:
        found = _read_answer(answer)
    elif has_too_many_choices(answer, b'"meta_info"', MOST_OUTPUTS) or has_too_many_containers(
        answer
    ):
        raise TooManyChoices
    else:
        found = _read_long_answer(answer)
    return [found] if isinstance(found, NativeOutput) else found


def _lenient(answer: bytes, at: str) -> Sequence[NativeOutput]:
    """Of what Python's json accepts beyond the standard."""
    found = lenient(answer)
    try:
        return _read_outputs(
            json.dumps([_needed(each) for each in (found if isinstance(found, list) else [found])])
        )
    except (*UNREADABLE, AttributeError):
        raise EngineFailed("the engine's answer is not whole", at=at) from None


def _needed(output: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that are none, which stand among log-probabilities. Raises AttributeError."""
    meta = output.get("meta_info") or {}
    kept = {name: meta.get(name) for name in _Meta.__struct_fields__}
    return {"meta_info": kept, "error": output.get("error")}


def raise_stream_error(first: bytes, *, at: str) -> None:
    """Raises what the first events of a good answer say went wrong, if they do."""
    for event in sse.events(first):
        data = sse.payload(event)
        output = read_event(data) if data else None
        if output is None:
            continue
        wrong = failure(output, at=at)
        if wrong is not None:
            raise wrong
        return


def _rejected(status: int, error: Any, at: str) -> EngineRejected:
    body = msgspec.json.encode({"error": error})
    return EngineRejected(status, [(b"content-type", b"application/json")], body, at=at)


def _usage(outputs: Sequence[NativeOutput]) -> Raw:
    """Of all of them; empty where they do not say."""
    metas = [output.meta_info for output in outputs if output.meta_info is not None]
    if any(meta.prompt_tokens is None for meta in metas):
        return Raw(b"")
    counts = {
        "prompt_tokens": sum(meta.prompt_tokens or 0 for meta in metas),
        "completion_tokens": sum(meta.completion_tokens or 0 for meta in metas),
        "prompt_tokens_details": {"cached_tokens": sum(meta.cached_tokens or 0 for meta in metas)},
    }
    return Raw(msgspec.json.encode(counts))
