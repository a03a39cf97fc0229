"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.

    message_start
      content_block_start  content_block_delta ...  content_block_stop     text, or a tool_use
    message_delta          why it ended, and the usage
    message_stop

Errors are {"type": "error", "error": {"type", "message"}}, as a response or as the last event.

Source: vLLM 0.32.0, vllm/entrypoints/anthropic/serving.py, messages_full_converter() and
message_stream_converter(); api_router.py, translate_error_response().
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from pdgate.engine import vision
from pdgate.engine.api import chat, fields
from pdgate.engine.api.answer import AnswerChoice, AnswerShape
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.fields import Body
from pdgate.engine.api.messages_input import as_chat
from pdgate.engine.api.named_events import event
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
from pdgate.engine.api.usage import AnswerUsage
from pdgate.engine.request import Finish
from pdgate.protocols.errors import BadRequest, GatewayError

PATH: Final = "/v1/messages"
COUNT_PATH: Final = f"{PATH}/count_tokens"


async def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel, EmbeddingLost."""
    if not fields.integer(body, "max_tokens"):
        raise BadRequest("max_tokens must be a positive integer", param="max_tokens")
    return chat.read(service, {**await vision.seen(as_chat(body)), "n": None})


async def count(service: EngineService, body: Body) -> dict[str, Any]:
    """Raises BadRequest, UnknownModel, EmbeddingLost."""
    asked = await vision.seen(as_chat(body))
    service.model_name(asked.get("model"))
    text = chat.text_of(service, asked)
    tokens = len(service.model.tokenizer.encode(text, special=False))
    return {
        "input_tokens": tokens,
        "context_management": {"original_input_tokens": tokens},
    }


def error_object(error: GatewayError) -> dict[str, Any]:
    return {"type": "error", "error": {"type": error.type, "message": str(error)}}


class MessagesShape(AnswerShape):
    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        super().__init__(service, ask, wire_id)
        self._reader = reader(ask.calls)
        self._blocks = _Blocks()
        self._pieces: list[Piece] = []
        self._end = AnswerChoice(0)

    def opening(self) -> list[bytes]:
        begun = self._message([], (None, None), {"output_tokens": 0, **_input(self.ask, 0)})
        return [_event("message_start", message=begun)]

    def piece(self, choice: AnswerChoice) -> list[bytes]:
        self._end = choice
        pieces = self._reader.feed(choice.text)
        self._pieces += pieces
        return self._blocks.add(pieces)

    def closing(self, usage: AnswerUsage) -> list[bytes]:
        _, calls = collected(self._pieces)
        reason, sequence = _why(self._end, calls)
        if self._end.without_chunk and not self._pieces:
            # vLLM 0.32.0 makes its events of chunks, and takes it for "stop" if none says why.
            reason = "end_turn"
        return [
            *self._blocks.close(),
            _event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": sequence},
                usage=_usage(usage),
            ),
            _event("message_stop"),
        ]

    def broken(self, error: GatewayError) -> list[bytes]:
        return [event("error", error_object(error))]

    def whole(self, choices: Sequence[AnswerChoice], usage: AnswerUsage) -> dict[str, Any]:
        text, calls = collected(self._reader.feed(choices[0].text))
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        # A call that the limit cut short must not be made; the stop reason tells of it.
        content += [_tool_use(call, json.loads(call.arguments)) for call in calls if call.complete]
        why = _why(choices[0], calls)
        said = self._message(content or [{"type": "text", "text": ""}], why, _usage(usage))
        params = choices[0].kv_transfer_params
        return said if params is None else {**said, "kv_transfer_params": params}

    def _message(
        self,
        content: list[dict[str, Any]],
        why: tuple[str | None, str | None],
        usage: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.wire_id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.ask.model,
            "stop_reason": why[0],
            "stop_sequence": why[1],
            "usage": usage,
        }


class _Blocks:
    """The content blocks of a stream, one open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open = False

    def add(self, pieces: Sequence[Piece]) -> list[bytes]:
        events: list[bytes] = []
        for piece in pieces:
            match piece:
                case Text(text):
                    if not self._open:
                        events += self._begin({"type": "text", "text": ""})
                    events.append(self._delta(type="text_delta", text=text))
                case CallBegins(_, id, name):
                    events += [*self.close(), *self._begin(_tool_use(CollectedCall(id, name), {}))]
                case Arguments(_, text):
                    events.append(self._delta(type="input_json_delta", partial_json=text))
        return events

    def close(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = False
        return [_event("content_block_stop", index=self._index)]

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        self._open = True
        self._index += 1
        return [_event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(name: str, **fields: Any) -> bytes:
    return event(name, {"type": name, **fields})


def _tool_use(call: CollectedCall, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _why(choice: AnswerChoice, calls: Sequence[CollectedCall]) -> tuple[str | None, str | None]:
    """Stop reason and stop sequence. As in vLLM, complete calls go before a stop string."""
    if choice.finish is Finish.LENGTH:
        return "max_tokens", None
    if choice.finish is not Finish.STOP:
        return None, None
    if calls and calls[-1].complete:
        return "tool_use", None
    if isinstance(choice.stopped_by, str):
        return "stop_sequence", choice.stopped_by
    return "tool_use" if calls else "end_turn", None


def _input(ask: ParsedRequest, cached: int) -> dict[str, int]:
    """What was cached is not among the input tokens, as Anthropic counts."""
    read = sum(len(prompt) for prompt in ask.prompts)
    return {"input_tokens": read - cached, "cache_read_input_tokens": cached}


def _usage(usage: AnswerUsage) -> dict[str, Any]:
    cached = sum(usage.cached.values())
    return {"output_tokens": usage.completion_tokens, **_input(usage.ask, cached)}
