"""POST /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from pdgate.engine.api import ask as asking
from pdgate.engine.api import fields, logprobs
from pdgate.engine.api.answer import Choice, Shape
from pdgate.engine.api.ask import Ask
from pdgate.engine.api.fields import Body
from pdgate.engine.api.service import Service
from pdgate.engine.model import chat
from pdgate.protocols.errors import BadRequest


def read(service: Service, body: Body) -> Ask:
    """Raises BadRequest, UnknownModel."""
    name = service.model_name(body.get("model"))
    text = text_of(service, body)
    prompt = tuple(service.model.tokenizer.encode(text, special=False))
    max_tokens = _max_tokens(service, body, len(prompt))
    asking.check_length(service.model, [prompt], max_tokens)
    count = asking.alternatives(body, "top_logprobs") or 0
    wanted = count if fields.flag(body, "logprobs") else None
    return Ask(
        body=body,
        model=name,
        prompts=(prompt,),
        texts=(text,),
        sampling=asking.sampling(body, max_tokens, wanted, None),
        choices=asking.choices(body),
        streams=fields.flag(body, "stream"),
        include_usage=asking.include_usage(body),
        logprobs=wanted,
        return_token_ids=fields.flag(body, "return_token_ids"),
    )


class ChatShape(Shape):
    def opening(self) -> list[dict[str, Any]]:
        """Who speaks, for each choice; the first also says what the prompt was."""
        chunks = [
            self._chunk([self._delta(Choice(index), {"role": "assistant", "content": ""})])
            for index in range(self.ask.choices)
        ]
        if self.ask.return_token_ids:
            chunks[0]["prompt_token_ids"] = self.ask.prompts[0]
        return chunks

    def chunk(self, choice: Choice, first: bool) -> dict[str, Any]:
        written = self._delta(choice, {"content": choice.text})
        if self.ask.return_token_ids:
            written["token_ids"] = choice.tokens
        return self._chunk([written])

    def last(self) -> dict[str, Any]:
        return self._chunk([])

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        answer = self._answer("chat.completion", [self._message(choice) for choice in choices])
        if self.ask.return_token_ids:
            answer["prompt_token_ids"] = self.ask.prompts[0]
        return answer

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._answer("chat.completion.chunk", choices)

    def _answer(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.wire_id}",
            "object": kind,
            "created": self.created,
            "model": self.ask.model,
            "choices": choices,
        }

    def _delta(self, choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, **self._rest(choice)}

    def _message(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        written = {"index": choice.index, "message": message, **self._rest(choice)}
        if self.ask.return_token_ids:
            written["token_ids"] = choice.tokens
        return written

    def _rest(self, choice: Choice) -> dict[str, Any]:
        found = None
        if choice.logprobs:
            found = logprobs.for_chat(self.tokenizer, choice.logprobs)
        return {
            "logprobs": found,
            "finish_reason": choice.finish,
            "stop_reason": choice.stopped_by,
        }


def text_of(service: Service, body: Body) -> str:
    """The chat as the model reads it. Raises BadRequest."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of messages", param="messages")
    if not all(isinstance(message, Mapping) for message in messages):
        raise BadRequest("a message must be an object", param="messages")
    tools = body.get("tools")
    try:
        return chat.render(
            service.model.tokenizer,
            messages,
            tools=tools if isinstance(tools, list) else None,
            add_generation_prompt=body.get("add_generation_prompt") is not False,
            extra=fields.mapping(body, "chat_template_kwargs"),
        )
    except ValueError as error:
        raise BadRequest(str(error), param="messages") from error


def _max_tokens(service: Service, body: Body, prompt_tokens: int) -> int:
    """The newer name wins; a chat without a limit gets the default, or all the room."""
    for name in ("max_completion_tokens", "max_tokens"):
        if (found := fields.integer(body, name)) is not None:
            return found
    return service.room(prompt_tokens)
