"""openai: chat, responses, embeddings."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.end_to_end.clients.asked import (
    HELLO,
    MODEL,
    SCHEMA,
    TIMEOUT_SECONDS,
    TOKENS,
    URL,
    is_weather,
)

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS)
HI: Any = [{"role": "user", "content": HELLO}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FUNCTION: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


class Person(BaseModel):
    name: str
    age: int


def test_a_chat_streams() -> None:
    asked: Any = {"model": MODEL, "messages": HI, "max_tokens": TOKENS, "temperature": 0}
    whole = CLIENT.chat.completions.create(**asked)
    with CLIENT.chat.completions.create(**asked, stream=True) as events:
        pieces = [event.choices[0] for event in events if event.choices]

    text = "".join(piece.delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert text
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_chat_calls_a_tool(choice: Any) -> None:
    asked: Any = {"model": MODEL, "messages": HI, "tools": [TOOL], "tool_choice": choice}
    answer = CLIENT.chat.completions.create(**asked)
    with CLIENT.chat.completions.stream(**asked) as events:
        streamed = events.get_final_completion()

    for found in (answer, streamed):
        calls = found.choices[0].message.tool_calls
        assert calls
        for call in calls:
            assert call.type == "function"
            assert call.function.name == "weather"
            assert is_weather(json.loads(call.function.arguments))


def test_the_result_of_a_tool_is_read() -> None:
    asked: Any = {"model": MODEL, "messages": HI, "tools": [TOOL]}
    first = CLIENT.chat.completions.create(**asked, tool_choice="required").choices[0].message
    assert first.tool_calls
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    asked["messages"] = [*HI, first, result]
    answer = CLIENT.chat.completions.create(**asked, max_tokens=TOKENS)

    assert answer.choices[0].message.content


def test_a_chat_is_parsed_as_a_class() -> None:
    answer = CLIENT.chat.completions.parse(model=MODEL, messages=HI, response_format=Person)

    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_response_streams() -> None:
    asked: Any = {"model": MODEL, "input": HELLO, "max_output_tokens": TOKENS, "temperature": 0}
    whole = CLIENT.responses.create(**asked)
    with CLIENT.responses.stream(**asked) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()

    assert whole.output_text
    assert final.output_text == whole.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") > 1
    assert final.usage
    assert final.usage.output_tokens == TOKENS


def test_a_response_calls_a_function() -> None:
    asked: Any = {"model": MODEL, "input": HELLO, "tools": [FUNCTION], "tool_choice": "required"}
    with CLIENT.responses.stream(**asked) as events:
        final = events.get_final_response()

    calls = [item for item in final.output if item.type == "function_call"]
    assert calls
    assert all(is_weather(json.loads(call.arguments)) for call in calls)
    # The conversation goes on with the call, and with what came of it.
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        for call in calls
    ]
    more: Any = [{"role": "user", "content": HELLO}, *final.output, *results]
    answer = CLIENT.responses.create(model=MODEL, input=more, max_output_tokens=TOKENS)
    assert answer.output_text


def test_a_response_is_parsed_as_a_class() -> None:
    answer = CLIENT.responses.parse(model=MODEL, input=HELLO, text_format=Person)

    assert isinstance(answer.output_parsed, Person)


def test_texts_are_embedded() -> None:
    answer = CLIENT.embeddings.create(model=MODEL, input=["one", "two", "one"])

    one, two, same = (data.embedding for data in answer.data)
    assert one == same != two
    assert sum(number * number for number in one) == pytest.approx(1, abs=1e-4)


def test_errors_are_the_librarys() -> None:
    def call(**fields: Any) -> None:
        CLIENT.chat.completions.create(**{"model": MODEL, "messages": HI, **fields})

    with pytest.raises(openai.NotFoundError) as missing:
        call(model="another")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        call(temperature=-3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        call(max_tokens=10_000_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        CLIENT.responses.create(model="another", input=HELLO)
    with pytest.raises(openai.NotFoundError):
        CLIENT.embeddings.create(model="another", input=HELLO)
