"""POST /v1/completions.

`prompt` is a string, a list of strings, a list of token ids, or a list of such lists.
"""

from collections.abc import Sequence
from typing import Any

from pdgate.engine.api import ask as asking
from pdgate.engine.api import constraints, fields, logprobs
from pdgate.engine.api.answer import AnswerChoice
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.fields import Body
from pdgate.engine.api.openai_shape import OpenAIShape
from pdgate.engine.api.service import EngineService
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.request import Logprob
from pdgate.protocols.errors import BadRequest

DEFAULT_MAX_TOKENS = 16


def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel."""
    name = service.model_name(body.get("model"))
    prompts, texts = prompts_and_texts(service.model, body.get("prompt"))
    max_tokens = fields.integer(body, "max_tokens")
    if max_tokens is None:
        max_tokens = _unnamed(service, body, max(map(len, prompts)))
    asking.check_length(service.model, prompts, max_tokens)
    count = asking.alternatives(body, "logprobs")
    echo = fields.flag(body, "echo")
    return ParsedRequest(
        body=body,
        model=name,
        prompts=prompts,
        texts=texts,
        sampling=asking.sampling(
            body,
            max_tokens,
            count,
            count if echo else None,
            constraints.grammar(service, body),
        ),
        choices=asking.choices(body),
        streams=fields.flag(body, "stream"),
        include_usage=asking.include_usage(body),
        echo=echo,
        logprobs=count,
        return_token_ids=fields.flag(body, "return_token_ids"),
    )


def _unnamed(service: EngineService, body: Body, prompt_tokens: int) -> int:
    """The limit of a call that names none; null, as in vLLM, asks for a chat's."""
    return service.room(prompt_tokens) if "max_tokens" in body else DEFAULT_MAX_TOKENS


class CompletionShape(OpenAIShape):
    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        super().__init__(service, ask, wire_id)
        # Choice index -> characters sent, for `text_offset`.
        self._sent: dict[int, int] = {}

    def first_chunks(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, choice: AnswerChoice, first: bool) -> list[dict[str, Any]]:
        return [self._answer([self._choice(choice, first)])]

    def last(self) -> dict[str, Any]:
        return self._answer([])

    def collected(self, choices: Sequence[AnswerChoice]) -> dict[str, Any]:
        return self._answer([self._choice(choice, True) for choice in choices])

    def _answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.wire_id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.ask.model,
            "choices": choices,
        }

    def _choice(self, choice: AnswerChoice, first: bool) -> dict[str, Any]:
        prompt = self.ask.prompt_of(choice.index)
        echoed = self.ask.texts[prompt] if first and self.ask.echo else ""
        written = {
            "index": choice.index,
            "text": echoed + choice.text,
            "logprobs": self._logprobs(choice, prompt, first),
            "finish_reason": choice.finish,
            "stop_reason": choice.stopped_by,
        }
        if self.ask.return_token_ids:
            written["token_ids"] = choice.tokens
            written["prompt_token_ids"] = self.ask.prompts[prompt] if first else None
        return written

    def _logprobs(self, choice: AnswerChoice, prompt: int, first: bool) -> dict[str, Any] | None:
        if self.ask.logprobs is None:
            return None
        found: list[tuple[int, Logprob | None]] = [(one.token, one) for one in choice.logprobs]
        if first and choice.prompt_logprobs is not None:
            pairs = zip(self.ask.prompts[prompt], choice.prompt_logprobs, strict=True)
            found = [*pairs, *found]
        offset = self._sent.get(choice.index, 0)
        written = logprobs.for_completion(self.tokenizer, found, offset)
        self._sent[choice.index] = offset + sum(len(text) for text in written["tokens"])
        return written


def token_ids(model: LoadedModel, prompt: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """Token ids of text, of ids or of a list of either. Raise BadRequest, which calls it `name`."""
    return prompts_and_texts(model, prompt, name)[0]


def prompts_and_texts(
    model: LoadedModel, prompt: Any, name: str = "prompt"
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Token ids and text of every prompt. Raises BadRequest, which calls it `name`."""
    if isinstance(prompt, list) and prompt and all(_is_id(item) for item in prompt):
        prompt = [prompt]
    listed = prompt if isinstance(prompt, list) else [prompt]
    if not listed:
        raise BadRequest("the list of prompts is empty", param=name)
    ids, texts = [], []
    for item in listed:
        if isinstance(item, str):
            ids.append(tuple(model.tokenizer.encode(item)))
            texts.append(item)
        elif isinstance(item, list) and all(_is_id(token) for token in item):
            check_ids(model, item, name)
            ids.append(tuple(item))
            texts.append(model.tokenizer.decode(item))
        else:
            raise BadRequest(f"{name} must be text or token ids, or a list of them", param=name)
    return tuple(ids), tuple(texts)


def _is_id(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def check_ids(model: LoadedModel, ids: Sequence[int], name: str) -> None:
    """Raises BadRequest."""
    size = model.config.vocab_size
    if not all(0 <= token < size for token in ids):
        raise BadRequest(f"token ids must lie in [0, {size})", param=name)
