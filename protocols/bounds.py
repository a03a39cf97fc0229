"""Bounds of a call: how many tokens its prompt has, about, and how many may be generated for it at most.

Read as engines read a body: counts may be numbers or texts of numbers, one body may have several prompts, and each
may have several choices. Where two fields bound the same, and engines differ in which of them wins, the larger one
counts. A field that engines of the route do not read bounds nothing.

    chat                   max_completion_tokens, max_tokens      x n, best_of
    completions            max_tokens                             x prompts x n, best_of
    responses              max_output_tokens
    messages               max_tokens
    /inference/v1/generate sampling_params.max_tokens             x n, best_of
    /generate              sampling_params.max_new_tokens         x prompts x n; or a list of them, one a prompt

Source: vLLM 0.32.0, entrypoints/openai/chat_completion/protocol.py and completion/protocol.py (to_sampling_params);
SGLang 001067f, srt/entrypoints/openai/protocol.py, srt/managers/io_struct.py (GenerateReqInput, _determine_batch_size).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pdgate.protocols.apis import GENERATE, MESSAGES, NATIVE, RESPONSES, Kind
from pdgate.protocols.call import (
    BYTES_PER_TOKEN,
    CHAT,
    COMPLETIONS,
    Call,
    Json,
    Raw,
    parse_object,
    value,
)
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import MOST_COUNT, UNREADABLE, count_of, is_nothing
from pdgate.protocols.inline_media import counted_bytes

MOST: Final = MOST_COUNT

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
_OF_UNKNOWN: Final = (
    "max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens",
)  # fmt: skip
_CHOICES: Final = ("n", "best_of")
_PROMPTS: Final = ("prompt", "input", "text", "input_ids", "token_ids", "prompt_token_ids")
_MOST_SEVERAL_BYTES: Final = 4 << 20
_MOST_SAMPLING_BYTES: Final = 256 << 10
_MOST_PASSED_BYTES: Final = 256 << 10

_list: Final = msgspec.json.Decoder(list[Raw])


class Bounds(NamedTuple):
    """Bounds of a call, in tokens.

    Attributes:
        prompt: An estimate, as only engines know their tokenizer; token ids are counted.
        generated: In all choices together; None for each answer that says no bound.
        answers: How many of them there are to be.
    """

    prompt: int
    generated: int | None
    answers: int

    def most_generated(self, unsaid: int) -> int:
        """`unsaid`: for each answer of a call that does not say it."""
        return min(self.answers * unsaid if self.generated is None else self.generated, MOST)


NONE: Final = Bounds(0, 0, 0)


def bounds_of(call: Call) -> Bounds:
    """Bounds of a call. Nothing is raised for what a client wrote: what engines will refuse bounds nothing."""
    api = call.api
    if api is not None and api.kind is Kind.COUNTS:
        return NONE
    if call.passed is not None:
        return _of_passed(call.passed.body)
    prompt = max(call.prompt_tokens, _ids(call.body))
    if api is not None and api.kind is Kind.READS:
        return Bounds(min(prompt, MOST), 0, 0)
    if call.path == NATIVE:
        return _of_native(call.body, min(prompt, MOST))
    fields = _object(call.body, "sampling_params") if call.path == GENERATE else call.body
    names = ("max_tokens",) if call.path == GENERATE else _FIELDS.get(call.path, _OF_UNKNOWN)
    answers = _choices(fields)
    if call.path == COMPLETIONS:
        answers *= _prompts(call.body)
    return _together(min(prompt, MOST), _most(fields, names), min(answers, MOST))


def _together(prompt: int, each: int | None, answers: int) -> Bounds:
    return Bounds(prompt, None if each is None else min(each * answers, MOST), answers)


def _most(fields: Json, names: Iterable[str]) -> int | None:
    found = [count for name in names if (count := count_of(_value(fields, name)))]
    return max(found, default=None)


def _choices(fields: Json) -> int:
    return _most(fields, _CHOICES) or 1


def _prompts(body: Json) -> int:
    """How many prompts a completion has: engines answer embeddings beside the others."""
    texts, embeds = body.get("prompt"), body.get("prompt_embeds")
    if is_nothing(embeds):
        return _several(texts)
    return _several(embeds) + (0 if is_nothing(texts) else _several(texts))


def _several(raw: Any) -> int:
    """How many prompts a field is: a list of texts, or of lists of token ids, is as many as it has."""
    if raw is None:
        return 1
    written = bytes(raw)
    if not written.startswith(b"[") or len(written) > _MOST_SEVERAL_BYTES:
        # As many as there can be: the shortest of each is `"",`.
        return 1 if not written.startswith(b"[") else written.count(b",") + 1
    if written[1:].lstrip()[:1] in (b'"', b"[", b"{"):
        try:
            return max(len(_list.decode(written)), 1)
        except UNREADABLE:
            return 1
    return 1


def _ids(body: Json) -> int:
    """Token ids among the prompts, which may be shorter than BYTES_PER_TOKEN."""
    tokens = 0
    for name in _PROMPTS:
        raw = body.get(name)
        if raw is None:
            continue
        if bytes(memoryview(raw)[:1]) != b"[":
            continue
        written = bytes(raw)
        if written.lstrip(b"[ \t\r\n")[:1].isdigit():
            tokens += written.count(b",") + 1
    return tokens


def _of_native(body: Json, prompt: int) -> Bounds:
    several = max(_several(body.get(name)) for name in ("text", "input_ids", "input_embeds"))
    raw = body.get("sampling_params")
    if raw is not None and bytes(memoryview(raw)[:1]) == b"[":
        return _of_each(bytes(raw), prompt)
    fields = _object(body, "sampling_params")
    return _together(
        prompt, _most(fields, ("max_new_tokens",)), min(several * _choices(fields), MOST)
    )


def _of_each(written: bytes, prompt: int) -> Bounds:
    """Of a list with parameters for each prompt."""
    generated, answers, unsaid = 0, 0, False
    try:
        found = _list.decode(written) if len(written) <= _MOST_SAMPLING_BYTES else []
    except UNREADABLE:
        found = []
    for raw in found:
        fields = _object({"sampling_params": raw}, "sampling_params")
        choices, each = _choices(fields), _most(fields, ("max_new_tokens",))
        answers += choices
        unsaid = unsaid or each is None
        generated += choices * (each or 0)
    if unsaid or not found:
        return Bounds(prompt, None, min(max(answers, 1), MOST))
    return Bounds(prompt, min(generated, MOST), min(answers, MOST))


def _of_passed(body: bytes) -> Bounds:
    """Of a route that only engines know: nothing is taken to be generated unless it says how much."""
    prompt = min(counted_bytes(body) // BYTES_PER_TOKEN, MOST)
    if not body.startswith(b"{") or len(body) > _MOST_PASSED_BYTES:
        return Bounds(prompt, 0, 0)
    try:
        fields = parse_object(body)
    except BadRequest:
        return Bounds(prompt, 0, 0)
    answers = min(_choices(fields), MOST)
    return _together(prompt, _most(fields, _OF_UNKNOWN) or 0, answers)


def _object(fields: Json, name: str) -> Json:
    raw = fields.get(name)
    if raw is None or len(bytes(raw)) > _MOST_SAMPLING_BYTES:
        return {}
    try:
        return parse_object(bytes(raw))
    except BadRequest:
        return {}


def _value(fields: Json, name: str) -> object:
    if name not in fields:
        return None
    try:
        found: object = value(fields, name)
    except BadRequest:
        return None
    return found
