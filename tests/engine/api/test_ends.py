"""How answers of the newer APIs end that do not end well: an engine that stops, or fails."""

import asyncio
import json
from typing import Any

import pytest

from pdgate.engine.api import messages, responses
from pdgate.engine.api.answer import AnswerChoice, AnswerShape
from pdgate.engine.api.messages import MessagesShape
from pdgate.engine.api.responses import ResponsesShape
from pdgate.engine.api.service import EngineService
from pdgate.engine.api.usage import AnswerUsage
from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.core import EngineCore
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.output_queue import OutputQueue
from pdgate.engine.request import Finish, Output
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.sse import payload
from tests.support.engine_cores import layout, tiny

ERROR = GatewayError("it broke")
RESPONSE: dict[str, Any] = {"input": "Hi"}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "Hi"}],
}


def service() -> EngineService:
    where = layout()
    output_queue = OutputQueue(asyncio.get_running_loop())
    core = EngineCore(
        tiny(),
        where,
        KvMemory(where, [memoryview(bytearray(where.total_bytes))]),
        output_queue.deliver,
    )
    return EngineService(core, output_queue, EngineMetrics(core, None, "tiny"), ("tiny",), 32)


async def shapes() -> tuple[ResponsesShape, MessagesShape]:
    made = service()
    return (
        ResponsesShape(made, await responses.read(made, RESPONSE), "w", RESPONSE),
        MessagesShape(made, await messages.read(made, MESSAGE), "w"),
    )


def ended(shape: AnswerShape, finish: Finish) -> dict[str, Any]:
    choice = AnswerChoice(0)
    choice.add(Output("r", text="abc", tokens=(1, 2, 3), finish=finish))
    return shape.whole([choice], AnswerUsage(shape.ask))


async def test_a_stream_that_fails_says_so_in_its_own_words() -> None:
    response, message = await shapes()
    (told,) = response.broken(ERROR)
    (said,) = message.broken(ERROR)

    assert told.startswith(b"event: error\n")
    found = json.loads(payload(told) or b"")
    assert (found["type"], found["message"], found["sequence_number"]) == ("error", "it broke", 0)
    assert found["error"]["message"] == "it broke"
    assert said.startswith(b"event: error\n")
    assert json.loads(payload(said) or b"") == {
        "type": "error",
        "error": {"type": "server_error", "message": "it broke"},
    }


@pytest.mark.parametrize(
    ("finish", "status", "details", "reason"),
    [
        (Finish.STOP, "completed", None, "end_turn"),
        (Finish.LENGTH, "incomplete", {"reason": "max_output_tokens"}, "max_tokens"),
        (Finish.ABORT, "cancelled", None, None),
    ],
)
async def test_why_an_answer_ended_is_said(
    finish: Finish, status: str, details: Any, reason: str | None
) -> None:
    response, message = await shapes()
    told, said = ended(response, finish), ended(message, finish)

    assert (told["status"], told["incomplete_details"]) == (status, details)
    assert (said["stop_reason"], said["stop_sequence"]) == (reason, None)
