"""Prompt of a call: whether there are several, and how an engine is asked to read it and no more.

Apart from the classes of base.py, as others inherit from those and this can be compiled.
"""

from typing import Final

import msgspec

from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import COMPLETIONS, TOO_DEEP, Call, Json
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import first_in_list, is_nothing

_one: Final = msgspec.json.Decoder(tuple[msgspec.Raw])
"""Ends where a second one begins."""

_MORE_THAN_ONE: Final = frozenset(
    {"max_completion_tokens", "n", "min_tokens", "return_token_ids", "stream_options"}
)
"""Fields that are of no use, or in the way, where one token is asked for."""

_OF_RESPONSES: Final = (
    "background",
    "stop",
    "stop_token_ids",
    "include",
    "top_logprobs",
    "request_id",
)
"""The same of /v1/responses (other_apis.py has their source)."""


def several_prompts(call: Call) -> bool:
    """A list of strings or of token lists; one list of token ids is one prompt. Embeddings are more of them.

    Raises BadRequest.

    Source: vLLM 0.32.0, renderers/online_renderer.py (preprocess_completion).
    """
    if call.path != COMPLETIONS:
        return False
    prompt = call.body.get("prompt")
    embeds = call.body.get("prompt_embeds")
    if embeds is not None and not is_nothing(embeds):
        if not is_nothing(prompt):
            return True
        prompt = embeds
    if prompt is None:
        return False
    # One list of token ids may be megabytes, and so may one text.
    first = first_in_list(prompt)
    if not first or first.isdigit() or first == b"-":
        return False
    try:
        _one.decode(prompt)
    except msgspec.DecodeError:
        return first != b"]"
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    return False


def one_token(body: Json, **fields: object) -> dict[str, object]:
    """The same question, but asking only for the prompt to be read.

    Chat requests have two spellings of the limit and the newer one wins, so both
    are set. min_tokens would contradict them, one token needs no stream, and no component reads
    the ids of a prompt here, which can be longer than the prompt.
    """
    asked: dict[str, object] = {**body, "max_tokens": 1, "stream": False}
    if not _MORE_THAN_ONE.isdisjoint(body):
        for limit in ("max_completion_tokens", "n"):
            if limit in asked:
                asked[limit] = 1
        for left_out in ("min_tokens", "return_token_ids", "stream_options"):
            asked.pop(left_out, None)
    if fields:
        asked.update(fields)
    return asked


def prompt_alone(call: Call, **fields: object) -> dict[str, object]:
    """What makes an engine read the prompt, and no more, with more fields of ours.

    A response ends by length then, whatever its first token is: some connectors drop their
    blocks if it ends otherwise, and there is no min_tokens here to prevent it.
    """
    if call.path != RESPONSES:
        return one_token(call.body, **fields)
    asked: dict[str, object] = {
        **call.body,
        "max_output_tokens": 1,
        "stream": False,
        "store": False,
        "ignore_eos": True,
    }
    for left_out in _OF_RESPONSES:
        asked.pop(left_out, None)
    asked.update(fields)
    return asked
