"""Token ids of a prompt, from the engine that read it to the one that answers: a prompt is tokenised once.

    to prefill      return_token_ids: true
    its answer      prompt_token_ids: [151644, 872, ...]
    to decode       kv_transfer_params: {..., "prompt_token_ids": [151644, 872, ...]}, and the call as it was

Decode takes them in place of what its chat template and its tokenizer would make of the messages, so it reads
the very tokens whose KV it is handed; tool calls, reasoning and structured output are read of its answer as ever.
Only chats are asked so: a completion has no template, and other APIs take no ids. Where messages have more than
text they are left out: ids do not say what a picture shows; likewise beside the fields in UNPROVEN. An engine that does not know the field keeps to the
messages, and one that answers no ids leaves decode's leg as it was.

Source: vLLM 0.32.0, renderers/online_renderer.py, _reused_prompt_token_ids() (vllm#48145, #55770), which takes no ids
beside media or with `echo`; entrypoints/openai/chat_completion/protocol.py, ChatCompletionResponse.prompt_token_ids,
and serving.py, which reads the rendered messages for `echo` alone, and of the prompt its ids.
"""

from typing import Any, Final

import msgspec

from pdgate.protocols.call import CHAT, Call, Json, Raw

ASK: Final = "return_token_ids"
FIELD: Final = "prompt_token_ids"

LONG_TOKENS: Final = 4096
"""As estimated. Shorter prompts are soon tokenised, and their calls are to cost the gateway nothing more."""

UNPROVEN: Final = frozenset(
    {
        "echo", "truncate_prompt_tokens", "truncation_side", "return_token_offsets", "prompt_logprobs",
        "use_beam_search", "mm_processor_kwargs", "media_io_kwargs",
    }
)  # fmt: skip
"""Fields beside which decode reads the messages as ever. `truncate_prompt_tokens` of -1 leaves prefill, of which one token
is asked, one token less than decode without a limit (TokenizeParams.max_truncation_tokens); `echo` writes of the messages;
of the others it was not shown that nothing else of the prompt is looked at."""

_TRUE: Final = Raw(b"true")
_TEXT: Final = (Raw(b'"text"'), Raw(b'"refusal"'), None)
_PART: Final = frozenset({"type", "text", "refusal", "cache_control"})
"""Fields of a part that is text alone: engines find media by other fields, too, without a `type` or beside a `uuid`."""
_WRITTEN: Final = (b'"', b"n")
"""How a text begins, and null."""


class _Message(msgspec.Struct):
    content: Raw = Raw(b"null")


_messages: Final = msgspec.json.Decoder(list[_Message])
_parts: Final = msgspec.json.Decoder(list[dict[str, Raw]])


def may_have_ids(call: Call) -> bool:
    """Whether decode may read ids in place of a long call's messages, as far as the call says."""
    return call.path == CHAT and UNPROVEN.isdisjoint(call.body)


def asking(body: Json) -> Json:
    """Body of a leg to prefill that asks for the ids as well."""
    return {**body, ASK: _TRUE}


def handed_on(body: Json, field: str, reply: Json) -> Json:
    """Body of a leg to decode with the ids that prefill answered, where it did and they say all."""
    ids, params = reply.get(FIELD), body.get(field)
    if not isinstance(ids, Raw) or bytes(memoryview(ids)[:1]) != b"[" or len(ids) <= len(b"[]"):
        return body
    if params is None or not is_text_alone(body.get("messages")):
        return body
    if not isinstance(params, Raw):
        return {**body, field: {**params, FIELD: ids}}
    if bytes(memoryview(params)[:1]) != b"{":
        return body
    # Written by the engine, and passed on as it is: what stands in it is not looked at.
    inside = bytes(memoryview(params)[1:]).lstrip()
    comma = b"" if inside[:1] == b"}" else b","
    return {**body, field: Raw(b'{"%b":%b%b%b' % (FIELD.encode(), bytes(ids), comma, inside))}


def is_text_alone(messages: Any) -> bool:
    """Whether no message has more than text."""
    if not isinstance(messages, Raw):
        return False
    try:
        for message in _messages.decode(messages):
            content = message.content
            begin = bytes(memoryview(content)[:1])
            if begin == b"[":
                for part in _parts.decode(content):
                    if not part.keys() <= _PART or part.get("type") not in _TEXT:
                        return False
            elif begin not in _WRITTEN:
                return False
    # What is odd is for the engine to read.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
