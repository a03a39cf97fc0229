"""Context lengths: which engines can hold a call, its prompt and its answer.

    likely    the prompt at BYTES_A_TOKEN (token ids are counted), and as much answer as the call asks for: engines
              that have less are left out, if there are others
    surely    prompts of token ids, and what is asked for alone: refused, if all engines that might answer say how
              long they are, and refuse what is longer (`EligibleSet.longest`)

Between the two the longest ones are asked, and say themselves what does not fit: how many tokens a
text has only they know. An engine that names no length may have any.

Who only reads has room for the prompt, and a partner that has room for all of it.

    refused by vLLM                     served by it
    max_tokens > max_model_len          max_tokens + prompt > max_model_len: the answer is cut
    prompt > max_model_len              the same with `truncate_prompt_tokens`
    (chats and completions)             other APIs, of which older versions cut the answer

Source: vLLM 0.32.0, renderers/params.py, TokenizeParams; entrypoints/openai/*/protocol.py, build_tok_params(), for
the fields that each API goes by. SGLang cuts both with --allow-auto-truncate (managers/tokenizer_manager.py,
_validate_one_request).
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import BYTES_PER_TOKEN, CHAT, COMPLETIONS, Call, Raw
from pdgate.protocols.errors import ContextTooLong
from pdgate.protocols.instance import BOTH, DECODE
from pdgate.scheduling.eligible import in_pairs, longest_of
from pdgate.scheduling.endpoint import Endpoint

BYTES_A_TOKEN: Final = 2
"""Few texts have less; `Call.prompt_tokens` is what is usual."""

_OFTEN: Final = BYTES_PER_TOKEN // BYTES_A_TOKEN
_MOST_DIGITS: Final = 18
_NULLS: Final = (Raw(b"null"), None)
_LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    CHAT: ("max_completion_tokens", "max_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
"""The first that is there counts."""

_TRUNCATES: Final = "truncate_prompt_tokens"


def may_be_too_long(call: Call, shortest: int) -> bool:
    """Whether it may have no room in the shortest context; most calls have, and nothing else is to be looked at."""
    return call.prompt_tokens * _OFTEN + asked_tokens(call) > shortest


def long_enough(
    call: Call,
    endpoints: Sequence[Endpoint],
    model: str,
    longest: int = 0,
    reads_only: bool = False,
) -> Sequence[Endpoint]:
    """Return those in which the call has room, as far as can be known; all of them where all are alike.

    Args:
        endpoints: One at least.
        longest: Tokens above which none of them serves a call; 0 where that is not known.
        reads_only: They are to read the prompt, and others to answer.

    Raises ContextTooLong.
    """
    asked = asked_tokens(call)
    prompt = _ids_of(call)
    if longest:
        _check(call, prompt, asked, model, longest)
    needed = (prompt or call.prompt_tokens * _OFTEN) + (0 if reads_only else asked)
    kept = [one for one in endpoints if _length(one, model) >= needed]
    if not kept:
        most = max(_length(one, model) for one in endpoints)
        kept = [one for one in endpoints if _length(one, model) == most]
    return endpoints if len(kept) == len(endpoints) else kept


def with_room_behind(
    call: Call,
    readers: Sequence[Endpoint],
    answering: Sequence[Endpoint],
    model: str,
    may_keep: bool,
) -> Sequence[Endpoint]:
    """Return the readers that have a partner in which the call has room; all of them where that makes no difference.

    Args:
        answering: Who may answer; one at least.
        may_keep: A reader of both roles may be left with the call, and so is to have room itself, if it may answer now.
    """
    enough = long_enough(call, answering, model)
    if enough is answering:
        return readers
    ids = {one.instance.id for one in enough}
    paired = in_pairs(readers, enough)
    if may_keep:
        # Not all of them answer for others.
        keeping = [one for one in paired if one.instance.role is BOTH and one.serves(DECODE)]
        roomy = {one.instance.id for one in long_enough(call, [*enough, *keeping], model)}
        short = {one.instance.id for one in keeping} - roomy
        paired = [one for one in paired if one.instance.id not in short] or paired
    # The last resort is one that answers itself.
    return paired or [one for one in readers if one.instance.id in ids] or readers


def refused_by_all(call: Call, endpoints: Sequence[Endpoint], model: str, reads_only: bool) -> bool:
    """Whether each of them says how long it is, and that this is longer; what only may be, they are asked."""
    longest = longest_of(endpoints, model)
    if not longest:
        return False
    if _ids_of(call) > longest and call.body.get(_TRUNCATES) in _NULLS:
        return True
    return not reads_only and asked_tokens(call) > longest and call.path in (CHAT, COMPLETIONS)


def _check(call: Call, prompt: int, asked: int, model: str, longest: int) -> None:
    """Raises ContextTooLong."""
    body = call.body
    if prompt > longest and body.get(_TRUNCATES) in _NULLS:
        raise ContextTooLong(
            f"{_most(longest)} the prompt of this call to {model!r} has {prompt} tokens",
            param="prompt",
        )
    if asked > longest and call.path in (CHAT, COMPLETIONS):
        raise ContextTooLong(
            f"{_most(longest)} {asked} are asked for of {model!r}",
            param=_limit_of(call),
        )


def _most(longest: int) -> str:
    """In the words by which client libraries know this error (litellm's ContextWindowExceededError)."""
    return f"This model's maximum context length is {longest} tokens. However,"


def prompt_tokens(call: Call) -> int:
    """What its prompt may take of a context; token ids are counted, which takes long where they are many."""
    return _ids_of(call) or call.prompt_tokens * _OFTEN


def why_too_short(call: Call, one: Endpoint, needed: int) -> str:
    """Why an engine is left out that has no room for so many tokens; empty if that is not the reason."""
    lengths = one.lengths
    length = min(lengths.values(), default=0) if call.model is None else lengths.get(call.model, 0)
    if not length or length >= needed:
        return ""
    return f"its context has {length} tokens, and the call may take {needed}"


def asked_tokens(call: Call) -> int:
    """Tokens that its answer may have, by the call; 0 where it names no limit."""
    name = _limit_of(call)
    return _count(call.body[name]) if name else 0


def _limit_of(call: Call) -> str:
    """The field that its API goes by; empty where the call has none."""
    body = call.body
    for name in _LIMITS.get(call.path, ()):
        if name in body and body[name] not in _NULLS:
            return name
    return ""


def _count(found: Any) -> int:
    """0 for what is no number: what that means, engines say."""
    if isinstance(found, Raw):
        digits = bytes(found) if len(found) <= _MOST_DIGITS else b""
        return int(digits) if digits.isdigit() else 0
    return found if type(found) is int and found > 0 else 0


def _ids_of(call: Call) -> int:
    """How many tokens a prompt of token ids has; 0 for one of texts."""
    prompt = call.body.get("prompt") if call.path == COMPLETIONS else None
    if isinstance(prompt, Raw):
        text = bytes(prompt)
        # A list of lists is several prompts, which each has to fit.
        if text[:1] == b"[" and text[1:].lstrip()[:1].isdigit():
            return text.count(b",") + 1
    elif isinstance(prompt, list) and prompt and type(prompt[0]) is int:
        return len(prompt)
    return 0


def _length(one: Endpoint, model: str) -> float:
    return one.lengths.get(model, inf)
