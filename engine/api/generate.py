"""POST /inference/v1/generate: token ids in, token ids out, and their log-probabilities.

Sampling parameters stand in an object of their own; where they name no max_tokens, all the room
there is may be used. The hand-over of KV comes at the top of the body or in `extra_args` of the
sampling parameters, as vLLM's connectors find it there.

Source: vLLM 0.32.0, entrypoints/scale_out/token_in_token_out/{protocol,serving}.py: ids that begin
with "generate-tokens-", log-probabilities by the numbers of tokens (_create_tokens_logprobs), usage in a last chunk.
"""

from collections.abc import Sequence
from typing import Any, Final

from pdgate.engine.api import ask as asking
from pdgate.engine.api import fields
from pdgate.engine.api.answer import AnswerChoice
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.completions import check_ids
from pdgate.engine.api.fields import Body
from pdgate.engine.api.openai_shape import OpenAIShape
from pdgate.engine.api.service import EngineService
from pdgate.engine.request import Logprob
from pdgate.protocols.errors import BadRequest

PATH: Final = "/inference/v1/generate"
TOKENS: Final = "tokens"
_HANDED: Final = "kv_transfer_params"


def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel."""
    name = service.model_name(body.get("model"))
    prompt = fields.integers(body, "token_ids")
    check_ids(service.model, prompt, "token_ids")
    if body.get("output_mode", TOKENS) != TOKENS:
        raise BadRequest(f'output_mode must be "{TOKENS}"', param="output_mode")
    sampling = fields.mapping(body, "sampling_params")
    if sampling is None:
        raise BadRequest("sampling_params must be an object", param="sampling_params")
    max_tokens = fields.integer(sampling, "max_tokens")
    if max_tokens is None:
        max_tokens = service.room(len(prompt))
    asking.check_length(service.model, (prompt,), max_tokens)
    count = asking.alternatives(sampling, "logprobs")
    extra = fields.mapping(sampling, "extra_args") or {}
    return ParsedRequest(
        body={**body, _HANDED: extra.get(_HANDED, body.get(_HANDED))},
        model=name,
        prompts=(prompt,),
        texts=("",),
        sampling=asking.sampling(
            sampling, max_tokens, count, asking.alternatives(sampling, "prompt_logprobs")
        ),
        choices=asking.choices(sampling),
        streams=fields.flag(body, "stream"),
        include_usage=asking.include_usage(body),
        logprobs=count,
    )


class TokensShape(OpenAIShape):
    def first_chunks(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, choice: AnswerChoice, first: bool) -> list[dict[str, Any]]:
        return [self._answer([self._choice(choice)])]

    def last(self) -> dict[str, Any]:
        return self._answer([])

    def collected(self, choices: Sequence[AnswerChoice]) -> dict[str, Any]:
        answer = self._answer([self._choice(choice) for choice in choices])
        prompt = choices[0].prompt_logprobs
        return {
            **answer,
            "model": self.ask.model,
            "created": self.created,
            "prompt_logprobs": None if prompt is None else [_by_id(one) for one in prompt],
        }

    def _answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"generate-tokens-{self.wire_id}"
        return {"request_id": name, "output_mode": TOKENS, "choices": choices}

    def _choice(self, choice: AnswerChoice) -> dict[str, Any]:
        found = None
        if self.ask.logprobs is not None:
            most = max(self.ask.logprobs, 1)
            found = {"content": [_content(one, most) for one in choice.logprobs]}
        return {
            "index": choice.index,
            "logprobs": found,
            "finish_reason": choice.finish,
            "stop_reason": choice.stopped_by,
            "token_ids": choice.tokens,
        }


def _content(one: Logprob, most: int) -> dict[str, Any]:
    """The token that was drawn comes first among the likeliest, too. Its rank is null beyond those that were asked for."""
    ranked: list[dict[str, Any]] = [
        {"token_id": token, "logprob": number, "rank": rank}
        for rank, (token, number) in enumerate(one.top, 1)
    ]
    drawn: dict[str, Any] = {"token_id": one.token, "logprob": one.logprob, "rank": None}
    others: list[dict[str, Any]] = []
    for named in ranked:
        if named["token_id"] == one.token:
            drawn = named
        else:
            others.append(named)
    return {**drawn, "top_logprobs": [drawn, *others][:most]}


def _by_id(one: Logprob | None) -> dict[str, Any] | None:
    if one is None:
        return None
    found = {**dict(one.top), one.token: one.logprob}
    return {str(token): {"logprob": number} for token, number in found.items()}
