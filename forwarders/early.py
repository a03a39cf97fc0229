"""Eligibility of a call for an answer that is committed on prefill's token (`--early-first-token`).

The token has to be decode's for certain: decode goes on behind it, or both take the likeliest one of what they
read alike. Prefill is asked for one token and reads all fields but its limits as they came, so it refuses what is
wrong with them; what only decode reads is looked at here. Of a field that is not known here it is unknown what it
changes: such a call waits for decode.

Source: vLLM 0.32.0, entrypoints/openai protocols, SamplingParams; v1/sample/logits_processor (min_tokens forbids the
end of the answer even where it is ignored).
"""

from typing import Any, Final

from pdgate.forwarders.base import Forwarder, Leg
from pdgate.forwarders.prompt import several_prompts
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Raw
from pdgate.protocols.errors import BadRequest

_ALIKE: Final = frozenset(
    {
        "add_generation_prompt",
        "allowed_token_ids",
        "cache_salt",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "messages",
        "metadata",
        "min_p",
        "model",
        "presence_penalty",
        "priority",
        "prompt",
        "repetition_penalty",
        "seed",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop_token_ids",
        "store",
        "stream",
        "top_k",
        "top_p",
        "user",
    }
)
"""Read by both, and of no meaning for a text that is out."""

_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_LOOKED_AT: Final = frozenset({*_LIMITS, "min_tokens", "stream_options", "temperature"})

_UNLESS: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "functions": ([],),
    "logprobs": (False,),
    "n": (1,),
    "parallel_tool_calls": (False, True),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "stop": ([], ""),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
}
"""Field -> values that ask for nothing."""

_FEW_BYTES: Final = 256
"""Of a value that is looked at; longer ones ask for something."""
_UNREAD: Final = object()
_LEAST_OF_ENGINES: Final = 16
"""Tokens of a completion that names no limit."""


def why_not_early(call: Call, forwarder: Forwarder, to_prefill: Leg) -> str:
    """Why prefill's token must not go out before decode has one; empty if it may. Raises nothing."""
    if not call.streams:
        return "no stream"
    if not forwarder.prefill_answers_first:
        return "prefill answers last"
    if call.path not in (CHAT, COMPLETIONS):
        return "route"
    for name in call.body.keys() - _ALIKE - _LOOKED_AT:
        found = _read(call, name)
        if found is not None and not any(_same(found, value) for value in _UNLESS.get(name, ())):
            return f"the field {name}"
    if several_prompts(call):
        return "several prompts"
    if not _only_usage(_read(call, "stream_options")):
        return "stream options"
    limits = [found for name in _LIMITS if (found := _read(call, name)) is not None]
    least = _read(call, "min_tokens")
    least = 0 if least is None else least
    if not all(_is_count(found) and found for found in limits) or not _is_count(least):
        return "decode may refuse its limits"
    if least > min(limits, default=_LEAST_OF_ENGINES):
        return "decode may refuse its limits"
    if forwarder.hands_first_token:
        return ""
    if not _is_zero(_read(call, "temperature")):
        # An unset one is the model's own default.
        return "sampled"
    if to_prefill.body.get("min_tokens") is not None:
        # Prefill is kept from ending the answer, as connectors keep no blocks then.
        return "" if least else "the answer may be empty"
    if least and _read(call, "ignore_eos"):
        # Decode is kept from ending it, and prefill's token may be an end that it ignored.
        return "an end that is ignored"
    return ""


def _read(call: Call, name: str) -> Any:
    """A field; _UNREAD if it is long, or no JSON that we read."""
    found = call.body.get(name)
    if isinstance(found, Raw) and len(found) > _FEW_BYTES:
        return _UNREAD
    try:
        return call.value(name)
    except BadRequest:
        return _UNREAD


def _same(found: Any, value: Any) -> bool:
    """0 is not False: so many logprobs ask for those of the chosen tokens."""
    return type(found) is type(value) and bool(found == value)


def _only_usage(options: Any) -> bool:
    if options is None:
        return True
    return isinstance(options, dict) and all(
        value is None or value is False or (name == "include_usage" and value is True)
        for name, value in options.items()
    )


def _is_count(found: Any) -> bool:
    return type(found) is int and found >= 0


def _is_zero(found: Any) -> bool:
    return type(found) in (int, float) and found == 0
