"""Fields of a request body that both endpoints read, beside the prompt itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.engine.api.tools import ToolCalls
from pdgate.engine.constrained.grammar import Grammar
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.request import Sampling
from pdgate.protocols.errors import BadRequest

HOTTEST = 100.0
MOST_CHOICES = 128
MOST_LOGPROBS = 100


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """
    Attributes:
        prompts: Token ids of each.
        texts: The prompts as text, for `echo`.
        choices: Answers to each prompt (`n`).
        logprobs: Alternatives to report; None for no log-probabilities.
        calls: What the answer has to be, if it has to be calls of tools.
    """

    body: Body
    model: str
    prompts: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    sampling: Sampling
    choices: int = 1
    streams: bool = False
    include_usage: bool = False
    echo: bool = False
    logprobs: int | None = None
    return_token_ids: bool = False
    calls: ToolCalls | None = None

    def prompt_of(self, index: int) -> int:
        """Which prompt a choice answers: the choices of one prompt are neighbours."""
        return index // self.choices


def sampling(
    body: Body,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    grammar: Grammar | None = None,
) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=fields.number(body, "temperature", 1.0, 0.0, HOTTEST),
        top_p=fields.number(body, "top_p", 1.0, 0.0, 1.0) or 1.0,
        top_k=max(0, fields.integer(body, "top_k", -1) or 0),
        min_p=fields.number(body, "min_p", 0.0, 0.0, 1.0),
        seed=_seed(body),
        stop=fields.texts(body, "stop"),
        include_stop=fields.flag(body, "include_stop_str_in_output"),
        stop_token_ids=frozenset(fields.integers(body, "stop_token_ids")),
        ignore_eos=fields.flag(body, "ignore_eos"),
        min_tokens=min(fields.integer(body, "min_tokens") or 0, max_tokens),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def choices(body: Body) -> int:
    count = fields.integer(body, "n", 1) or 1
    if count > MOST_CHOICES:
        raise BadRequest(f"n must be at most {MOST_CHOICES}", param="n")
    return count


def alternatives(body: Body, name: str) -> int | None:
    """How many log-probabilities are asked for, by a field that is a number."""
    count = fields.integer(body, name)
    if count is not None and count > MOST_LOGPROBS:
        raise BadRequest(f"{name} must be at most {MOST_LOGPROBS}", param=name)
    return count


def include_usage(body: Body) -> bool:
    return fields.flag(fields.mapping(body, "stream_options") or {}, "include_usage")


def check_length(model: LoadedModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Raises BadRequest for what the model cannot hold."""
    for prompt in prompts:
        asked = len(prompt) + max_tokens
        if not prompt:
            raise BadRequest("the prompt has no tokens", param="prompt")
        if asked > model.positions:
            raise PromptTooLong(
                f"This model's maximum context length is {model.positions} tokens. However, you "
                f"requested {asked} tokens ({len(prompt)} in the prompt, {max_tokens} for the "
                "answer)."
            )


class PromptTooLong(BadRequest):
    code = "context_length_exceeded"


def _seed(body: Body) -> int | None:
    """Any integer; NumPy wants it not negative."""
    found = fields.integer(body, "seed", -(1 << 63))
    return None if found is None else found % (1 << 64)
