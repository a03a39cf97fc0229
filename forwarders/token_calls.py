"""Splitting of calls of tokens, /inference/v1/generate, by engines that speak by kv_transfer_params.

    P   {"token_ids": [...], "sampling_params": {"max_tokens": 1, "extra_args": {"kv_transfer_params": ask}}}
    D   {"token_ids": [...], "sampling_params": {..., "extra_args": {"kv_transfer_params": P's answer}}}

The hand-over is written twice: at the top of the call, where the request has a field for it, and
into the extra arguments of its sampling parameters. vLLM reads the field at the top and lost it on
its way to the engine until vllm-project/vllm#42644: decode computed the prompt again, in silence.
In the extra arguments, where chats have it in all versions, it arrives in every one.

Source: vLLM 0.32.0, entrypoints/scale_out/token_in_token_out/serving.py (serve_tokens),
entrypoints/openai/chat_completion/protocol.py (to_sampling_params).
"""

from typing import Final

from pdgate.protocols.call import Call, Raw, encode, value
from pdgate.protocols.sampling import EXTRA, SAMPLING, object_in, sampling_of

_OF_MORE_TOKENS: Final = (
    "min_tokens",
    "logprobs",
    "logprob_token_ids",
    "stop",
    "stop_token_ids",
    "trace_decode_token_ids",
)
_OF_AN_ANSWER: Final = ("request_id", "return_token_ids", "stream_options", "output_mode")
_OF_THE_PROMPT: Final = ("prompt_logprobs", "prompt_logprob_token_ids")
"""Known only where the prompt was computed."""
_NULL: Final = Raw(b"null")


def why_whole(call: Call) -> str | None:
    """Why a call must stay with one engine; None if it may be split. Raises BadRequest."""
    sampling = sampling_of(call)
    if value(sampling, "n", 1) not in (None, 1):
        return "several choices"
    for name in _OF_THE_PROMPT:
        if sampling.get(name, _NULL) != _NULL:
            return name
    return None


def prompt_alone(call: Call, field: str, handed: Raw) -> dict[str, object]:
    """What makes prefill read the prompt, and no more. It ends by length, whatever its token is."""
    asked = told(call, field, handed, max_tokens=1, ignore_eos=True)
    for left_out in _OF_AN_ANSWER:
        asked.pop(left_out, None)
    asked["stream"] = False
    return asked


def told(call: Call, field: str, handed: object, **instead: object) -> dict[str, object]:
    """The call with what is handed over; `instead` are sampling parameters of one token."""
    said = sampling_of(call)
    sampling: dict[str, object] = {**said, EXTRA: {**object_in(said, EXTRA), field: handed}}
    if instead:
        for left_out in _OF_MORE_TOKENS:
            sampling.pop(left_out, None)
        sampling.update(instead)
    return {**call.body, SAMPLING: Raw(encode(sampling)), field: handed}
