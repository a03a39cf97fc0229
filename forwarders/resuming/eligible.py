"""Eligibility for resumption: calls that another engine can take up after their first byte.

Only fields that are known here may be there: of any other it is unknown whether its
meaning depends on what has been generated before.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdgate.forwarders.prompt import several_prompts
from pdgate.forwarders.token_ids import is_text_alone
from pdgate.protocols.call import CHAT, Call, Raw
from pdgate.protocols.fields import MOST_LIST_BYTES, MOST_VALUE_BYTES, count_of

WANTED: Final = "return_token_ids"

CARRIED: Final = frozenset(
    {
        "allowed_token_ids",
        "cache_salt",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "model",
        "priority",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)
"""Means the same for the rest of an answer, by chat and by completions.

A repetition penalty counts the prompt as well as the answer (vLLM 0.32.0, SamplingParams).
"""

_READ: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template_kwargs",
        "logprobs",
        "messages",
        "reasoning_effort",
        WANTED,
    }
)
"""Of chats. Has done its work when the prompt is tokens, or is translated (continuation.py)."""

_READ_OF_COMPLETIONS: Final = frozenset({"prompt", WANTED})

_COUNTS: Final = frozenset({"max_completion_tokens", "max_tokens", "min_tokens", "top_logprobs"})
"""Of chats, translated as well."""

_COUNTS_OF_COMPLETIONS: Final = frozenset({"logprobs", "max_tokens", "min_tokens"})

_UNLESS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "best_of": ((1,), "several choices"),
    "echo": ((False,), "the prompt is echoed"),
    "frequency_penalty": ((0,), "a penalty counts the tokens of the answer"),
    "functions": (([],), "tools"),
    "metadata": ((), ""),
    "n": ((1,), "several choices"),
    "parallel_tool_calls": ((), ""),
    "presence_penalty": ((0,), "a penalty counts the tokens of the answer"),
    "response_format": (({"type": "text"},), "a grammar cannot be entered midway"),
    "service_tier": ((), ""),
    "stop": (([], ""), "a stop string may have begun"),
    "store": ((), ""),
    "suffix": (("",), "a suffix"),
    "tool_choice": (("none", "auto"), "tools"),
    "tools": (([],), "tools"),
}
"""Field -> values that say nothing (all, if there is no reason), and the reason for others."""


def why_not(call: Call) -> str:
    """Why this call must not be resumed; "" if it may. Raises BadRequest for broken JSON."""
    if not call.streams:
        return "no stream"
    if several_prompts(call):
        return "several prompts"
    chat = call.path == CHAT
    counts = _COUNTS if chat else _COUNTS_OF_COMPLETIONS
    for name in call.body.keys() - CARRIED - (_READ if chat else _READ_OF_COMPLETIONS):
        if isinstance(raw := call.body[name], Raw) and len(raw) > MOST_VALUE_BYTES:
            return f"the field {name}"
        found = call.value(name)
        if found is None or (name in counts and count_of(found) is not None):
            continue
        values, reason = _UNLESS.get(name, ((), f"the field {name}"))
        if reason and found not in values:
            return reason
    if call.value("seed") is not None and call.value("temperature") != 0:
        return "a seed's draws cannot be entered midway"
    return ""


def more_than_text(call: Call) -> bool:
    """Images and the like stand for tokens of the prompt that mean nothing without them."""
    said = call.body.get("messages")
    if said is None:
        return False
    # What is not looked at may be anything.
    return (isinstance(said, Raw) and len(said) > MOST_LIST_BYTES) or not is_text_alone(said)
