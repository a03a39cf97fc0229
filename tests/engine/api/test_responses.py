"""/v1/responses; the official client's types are the judge."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pdgate.protocols.sse import Splitter, payload
from tests.engine.api.conftest import Served
from tests.engine.api.test_answers import chat

PATH = "/v1/responses"
FUNCTION = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
KINDS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def respond(served: Served, **fields: Any) -> dict[str, Any]:
    answer = await served.http.post(PATH, json={"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    found: dict[str, Any] = answer.json()
    return found


async def events(served: Served, **fields: Any) -> list[dict[str, Any]]:
    answer = await served.http.post(PATH, json={"temperature": 0, "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    raw = list(Splitter().feed(answer.content))
    found = [json.loads(payload(event) or b"null") for event in raw]
    for event, one in zip(raw, found, strict=True):
        KINDS.validate_python(one)
        assert event.startswith(f"event: {one['type']}\n".encode())
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


async def test_a_response_says_what_the_same_chat_says(served: Served) -> None:
    found = await respond(served, input="Hi", instructions="Be brief", max_output_tokens=12)
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
    ]
    right = await chat(served, messages, ignore_eos=False)

    (item,) = found["output"]
    assert item["content"][0]["text"] == right["choices"][0]["message"]["content"]
    assert (found["status"], found["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert found["usage"]["input_tokens"] == right["usage"]["prompt_tokens"]
    assert found["usage"]["output_tokens"] == 12
    assert found["model"] == "tiny"


async def test_items_are_read_as_a_chat(served: Served) -> None:
    """A conversation with a call and its result has the prompt that a chat of it has."""
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {"type": "message", "role": "user", "content": "c"},
    ]
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "c"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    found = await respond(served, input=items, max_output_tokens=12)
    right = await chat(served, messages, ignore_eos=False)

    assert found["usage"]["input_tokens"] == right["usage"]["prompt_tokens"]
    assert found["output"][0]["content"][0]["text"] == right["choices"][0]["message"]["content"]


async def test_a_stream_tells_of_a_message_in_order(served: Served) -> None:
    whole = await respond(served, input="Hi", max_output_tokens=4)
    found = await events(served, input="Hi", max_output_tokens=4)

    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = whole["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in found[4:8]) == text
    assert found[8]["text"] == text
    last = found[-1]["response"]
    assert last["output"] == [found[-2]["item"]]
    assert last["status"] == "incomplete"
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (6, 4)
    assert found[0]["response"]["id"] == last["id"]


async def test_a_stream_tells_of_a_call_in_order(served: Served) -> None:
    asked = {"input": "Hi", "tools": [FUNCTION], "tool_choice": "required"}
    whole = await respond(served, **asked, parallel_tool_calls=False)
    found = await events(served, **asked, parallel_tool_calls=False)

    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
    (item,) = whole["output"]
    assert "".join(event["delta"] for event in found[3:-3]) == item["arguments"]
    assert found[-3]["arguments"] == item["arguments"]
    assert json.loads(item["arguments"]).keys() == {"city"}
    assert (item["name"], item["status"], whole["status"]) == ("weather", "completed", "completed")


async def test_a_function_can_be_named_and_a_format_asked_for(served: Served) -> None:
    named = await respond(
        served, input="Hi", tools=[FUNCTION], tool_choice={"type": "function", "name": "weather"}
    )
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    formed = await respond(served, input="Hi", text={"format": form})

    assert [item["name"] for item in named["output"]] == ["weather"]
    assert json.loads(formed["output"][0]["content"][0]["text"])["ok"] in (True, False)


async def test_the_id_is_the_callers_or_new(served: Served) -> None:
    headers = {"X-Request-Id": "abc"}
    body = {"input": "Hi", "max_output_tokens": 1}
    named = await respond(served, **body, request_id="mine")
    unnamed = await served.http.post(PATH, json=body, headers=headers)

    assert named["id"] == "mine"
    assert unnamed.json()["id"].startswith("resp_")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "file_search_call"}]}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "include": ["message.output_text.logprobs"]}, "include"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "x"}}, "tools"),
        ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "model": "none"}, "model"),
    ],
)
async def test_what_is_not_here_is_refused(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    answer = await served.http.post(PATH, json=fields)

    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param
