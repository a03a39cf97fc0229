"""Question of /tokenize: what of a call decides the tokens of its prompt, as the engine's chat template and tokenizer make them.

Source: vLLM 0.32.0, vllm/entrypoints/serve/tokenize/protocol.py.
"""

from typing import Final

from pdgate.protocols.call import Call, Json

PATH: Final = "/tokenize"

FIELDS: Final = (
    "model", "messages", "prompt", "tools", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template", "chat_template_kwargs", "media_io_kwargs",
    "mm_processor_kwargs",
)  # fmt: skip
"""Fields of a call that /tokenize takes as well."""

OF_NO_PROMPT: Final = frozenset(
    {
        "cache_salt", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "metadata", "min_p", "min_tokens", "n", "presence_penalty", "priority",
        "repetition_penalty", "seed", "stop", "stop_token_ids", "stream", "stream_options", "temperature",
        "top_k", "top_logprobs", "top_p", "user",
    }
)  # fmt: skip
"""Fields that a chat's prompt does not hang on; of one that is in neither list it is not known."""

_KNOWN: Final = OF_NO_PROMPT | frozenset(FIELDS)


def asks_for_all(call: Call) -> bool:
    """Whether the question has all that its prompt hangs on."""
    return _KNOWN.issuperset(call.body)


def question(call: Call) -> Json:
    return {name: call.body[name] for name in FIELDS if name in call.body}
