"""The prompt of a call: whether there are several, and how an engine is asked to read it and no more.

Apart from the classes of base.py, as others inherit from those and this can be compiled.
"""

from typing import Final

from pdgate.protocols.call import COMPLETIONS, Call, Json

_MORE_THAN_ONE: Final = frozenset(
    {"max_completion_tokens", "n", "min_tokens", "return_token_ids", "stream_options"}
)
"""Fields that are of no use, or in the way, where one token is asked for."""


def several_prompts(call: Call) -> bool:
    """A list of strings or of token lists; one list of token ids is one prompt."""
    if call.path != COMPLETIONS:
        return False
    prompt = call.body.get("prompt")
    if prompt is None or bytes(prompt)[:1] != b"[":
        return False
    prompts = call.value("prompt")
    return len(prompts) > 1 and not isinstance(prompts[0], int)


def one_token(body: Json, **fields: object) -> dict[str, object]:
    """The same question, but asking only for the prompt to be read.

    Chat requests have two spellings of the limit and the newer one wins, so both
    are set. min_tokens would contradict them, one token needs no stream, and nobody reads
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
