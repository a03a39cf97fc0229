"""POST /v1/chat/completions.

Source of what calls of tools look like: vLLM 0.32.0,
vllm/entrypoints/openai/chat_completion/serving.py, chat_completion_stream_generator().
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdgate.engine.api import ask as asking
from pdgate.engine.api import constraints, fields, logprobs, tools
from pdgate.engine.api.answer import AnswerChoice
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.completions import check_ids
from pdgate.engine.api.fields import Body
from pdgate.engine.api.openai_shape import OpenAIShape
from pdgate.engine.api.pieces import (
    Arguments,
    CallBegins,
    CollectedCall,
    Piece,
    Text,
    collected,
    reader,
)
from pdgate.engine.api.service import EngineService
from pdgate.engine.model import chat
from pdgate.engine.request import Finish
from pdgate.protocols.errors import BadRequest

_IDS: Final = "prompt_token_ids"


def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel."""
    name = service.model_name(body.get("model"))
    text = text_of(service, body)
    body, handed = _handed_on(body)
    prompt = _tokenised(service, body, handed) or tuple(
        service.model.tokenizer.encode(text, special=False)
    )
    calls = tools.forced(body)
    grammar = constraints.grammar(service, body, calls)
    max_tokens = _max_tokens(service, body, len(prompt), ends=grammar is not None)
    asking.check_length(service.model, [prompt], max_tokens)
    count = asking.alternatives(body, "top_logprobs") or 0
    wanted = count if fields.flag(body, "logprobs") else None
    return ParsedRequest(
        body=body,
        model=name,
        prompts=(prompt,),
        texts=(text,),
        sampling=asking.sampling(body, max_tokens, wanted, None, grammar),
        choices=asking.choices(body),
        streams=fields.flag(body, "stream"),
        include_usage=asking.include_usage(body),
        logprobs=wanted,
        return_token_ids=fields.flag(body, "return_token_ids"),
        calls=calls,
    )


class ChatShape(OpenAIShape):
    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        super().__init__(service, ask, wire_id)
        self._readers = [reader(ask.calls) for _ in range(ask.choices)]

    def first_chunks(self) -> list[dict[str, Any]]:
        """Chunks with the role of each choice; the first also says what the prompt was."""
        chunks = [
            self._chunk([self._delta(AnswerChoice(index), {"role": "assistant", "content": ""})])
            for index in range(self.ask.choices)
        ]
        if self.ask.return_token_ids:
            chunks[0]["prompt_token_ids"] = self.ask.prompts[0]
        return chunks

    def chunks(self, choice: AnswerChoice, first: bool) -> list[dict[str, Any]]:
        if self.ask.calls is None:
            delta: dict[str, Any] = {"content": choice.text}
        else:
            pieces = self._readers[choice.index].feed(choice.text)
            delta = {"tool_calls": _deltas(pieces)} if pieces else {}
        written = self._delta(choice, delta)
        if self.ask.return_token_ids:
            written["token_ids"] = choice.tokens
        said = delta or choice.finish or choice.logprobs or self.ask.return_token_ids
        return [self._chunk([written])] if said else []

    def last(self) -> dict[str, Any]:
        return self._chunk([])

    def collected(self, choices: Sequence[AnswerChoice]) -> dict[str, Any]:
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

    def _delta(self, choice: AnswerChoice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, **self._rest(choice)}

    def _message(self, choice: AnswerChoice) -> dict[str, Any]:
        text, calls = collected(reader(self.ask.calls).feed(choice.text))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message["tool_calls"] = [_written(call) for call in calls]
        written = {"index": choice.index, "message": message, **self._rest(choice)}
        if self.ask.return_token_ids:
            written["token_ids"] = choice.tokens
        return written

    def _rest(self, choice: AnswerChoice) -> dict[str, Any]:
        found = None
        if choice.logprobs:
            found = logprobs.for_chat(self.tokenizer, choice.logprobs)
        return {
            "logprobs": found,
            "finish_reason": self._finish(choice),
            "stop_reason": choice.stopped_by,
        }

    def _finish(self, choice: AnswerChoice) -> str | None:
        """An answer of calls that the model chose says so; of one that it had to make, not."""
        calls = self.ask.calls
        if calls is not None and calls.named is None and choice.finish is Finish.STOP:
            return "tool_calls"
        return choice.finish


def _deltas(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """A call that begins says who it is, and may have some of its arguments with it."""
    found: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case CallBegins(index, id, name):
                function = {"name": name, "arguments": ""}
                found.append({"index": index, "id": id, "type": "function", "function": function})
            case Arguments(index, text):
                if found and found[-1]["index"] == index:
                    found[-1]["function"]["arguments"] += text
                else:
                    found.append({"index": index, "function": {"arguments": text}})
            case Text():
                raise AssertionError("an answer of calls has no text")
    return found


def _written(call: CollectedCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _handed_on(body: Body) -> tuple[Body, Any]:
    """The body without the ids that the engine which read the prompt has made of it, and these (vLLM).

    They are left out where messages have more than text, of which they do not say all.
    """
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get(_IDS) is None:
        return body, None
    ids = params[_IDS]
    rest = {name: value for name, value in params.items() if name != _IDS}
    return {**body, "kv_transfer_params": rest}, None if _shows_more(body) else ids


def _shows_more(body: Body) -> bool:
    messages = body.get("messages")
    found = [one.get("content") for one in messages if isinstance(one, Mapping)] if messages else []
    parts = [part for content in found if isinstance(content, list) for part in content]
    return any(not isinstance(part, Mapping) or part.get("type") != "text" for part in parts)


def _tokenised(service: EngineService, body: Body, handed: Any) -> tuple[int, ...]:
    """The prompt as another engine has tokenised it: vLLM's, or TensorRT-LLM's. Raises BadRequest."""
    ids, named = (
        (body.get(_IDS), _IDS) if handed is None else (handed, f"kv_transfer_params.{_IDS}")
    )
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise BadRequest(f"{named} must be a list of token ids", param=named)
    check_ids(service.model, ids, named)
    return tuple(ids)


def text_of(service: EngineService, body: Body) -> str:
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


def _max_tokens(service: EngineService, body: Body, prompt_tokens: int, *, ends: bool) -> int:
    """The newer name wins; a chat without a limit gets the default, or all the room.

    An answer that ends by itself gets that, so that it is whole.
    """
    for name in ("max_completion_tokens", "max_tokens"):
        if (found := fields.integer(body, name)) is not None:
            return found
    if ends:
        return max(1, service.model.positions - prompt_tokens)
    return service.room(prompt_tokens)
