"""POST /v1/responses.

Answers are not stored: there is no GET, and `store` is ignored as in a vLLM without
VLLM_ENABLE_RESPONSES_API_STORE.

    response.created  response.in_progress
      response.output_item.added  [response.content_part.added]
        response.output_text.delta ...  or  response.function_call_arguments.delta ...
      response.output_text.done, response.content_part.done  or  ..._arguments.done
      response.output_item.done
    response.completed        also where the limit cut it: its status is "incomplete" then

Source: vLLM 0.32.0, vllm/entrypoints/openai/responses/protocol.py, ResponsesResponse;
serving.py, responses_stream_generator(); streaming_events.py.
"""

from collections.abc import Sequence
from typing import Any, Final

from pdgate.engine import vision
from pdgate.engine.api import chat
from pdgate.engine.api.answer import AnswerChoice, AnswerShape
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.fields import Body
from pdgate.engine.api.named_events import event
from pdgate.engine.api.output_items import Items
from pdgate.engine.api.pieces import reader
from pdgate.engine.api.responses_input import as_chat
from pdgate.engine.api.service import EngineService, new_id
from pdgate.engine.api.usage import AnswerUsage
from pdgate.engine.request import Finish
from pdgate.protocols.errors import BadRequest, GatewayError

# Fields that an answer repeats from its call, with what they are if the call has none.
REPEATED: Final = {
    "instructions": None,
    "max_tool_calls": None,
    "metadata": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "tool_choice": "auto",
    "tools": (),
    "truncation": "disabled",
    "user": None,
}

STATUS: Final = {
    Finish.STOP: "completed",
    Finish.LENGTH: "incomplete",
    # The engine is shutting down.
    Finish.ABORT: "cancelled",
    None: "in_progress",
}


async def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel, EmbeddingLost."""
    ask = chat.read(service, await vision.seen(as_chat(body)))
    if ask.choices != 1:
        raise BadRequest("n: a response has one answer", param="n")
    return ask


class ResponsesShape(AnswerShape):
    """
    Args:
        body: As the client sent it.
    """

    def __init__(
        self, service: EngineService, ask: ParsedRequest, wire_id: str, body: Body
    ) -> None:
        super().__init__(service, ask, wire_id)
        self._body = body
        # As in vLLM, X-Request-Id is not the id of a response.
        found = body.get("request_id")
        self._id = found if isinstance(found, str) else new_id("resp")
        self._reader = reader(ask.calls)
        self._items = Items()
        self._count = 0
        self._end = AnswerChoice(0)

    def opening(self) -> list[bytes]:
        said = self._response("in_progress", [], None)
        return self._numbered(
            {"type": f"response.{what}", "response": said} for what in ("created", "in_progress")
        )

    def piece(self, choice: AnswerChoice) -> list[bytes]:
        self._end = choice
        return self._numbered(self._items.add(self._reader.feed(choice.text)))

    def closing(self, usage: AnswerUsage) -> list[bytes]:
        events = self._items.close()
        events.append({"type": "response.completed", "response": self._ended(self._end, usage)})
        return self._numbered(events)

    def broken(self, error: GatewayError) -> list[bytes]:
        """The reference has the fields at the top; OpenAI's clients look for "error"."""
        said = error.as_openai()["error"]
        return self._numbered([{**said, "type": "error", "error": said}])

    def whole(self, choices: Sequence[AnswerChoice], usage: AnswerUsage) -> dict[str, Any]:
        self._items.add(self._reader.feed(choices[0].text))
        self._items.close()
        return self._ended(choices[0], usage)

    def _numbered(self, events: Any) -> list[bytes]:
        written = []
        for one in events:
            written.append(event(one["type"], {**one, "sequence_number": self._count}))
            self._count += 1
        return written

    def _ended(self, choice: AnswerChoice, usage: AnswerUsage) -> dict[str, Any]:
        said = self._response(STATUS[choice.finish], self._items.done, _usage(usage))
        return said | {"kv_transfer_params": choice.kv_transfer_params}

    def _response(
        self, status: str, output: Sequence[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        sampling, cut = self.ask.sampling, status == "incomplete"
        repeated = {
            name: default if self._body.get(name) is None else self._body[name]
            for name, default in REPEATED.items()
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.ask.model,
            "output": output,
            **repeated,
            "background": False,
            "max_output_tokens": sampling.max_tokens,
            "parallel_tool_calls": self._body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "prompt": None,
            "temperature": sampling.temperature,
            "top_logprobs": None,
            "top_p": sampling.top_p,
            "usage": usage,
        }


def _usage(usage: AnswerUsage) -> dict[str, Any]:
    counted = usage.as_openai()
    cached = counted["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
