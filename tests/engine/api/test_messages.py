"""Anthropic's Messages API; tests/end_to_end/clients asks with the official client."""

import json
from typing import Any

import pytest

from pdgate.engine.pace import Faults
from pdgate.protocols.sse import Splitter, payload
from tests.engine.api.conftest import Served, serve
from tests.engine.api.test_answers import chat

PATH = "/v1/messages"
ASKED = {
    "model": "tiny",
    "max_tokens": 6,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Hi"}],
}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def ask(served: Served, **fields: Any) -> dict[str, Any]:
    answer = await served.http.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def events(served: Served, **fields: Any) -> list[dict[str, Any]]:
    answer = await served.http.post(PATH, json={**ASKED, "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    raw = list(Splitter().feed(answer.content))
    found = [json.loads(payload(event) or b"null") for event in raw]
    for event, one in zip(raw, found, strict=True):
        assert event.startswith(f"event: {one['type']}\n".encode())
    return found


async def test_a_message_says_what_the_same_chat_says(served: Served) -> None:
    right = await chat(served, max_tokens=6, ignore_eos=False)
    found = await ask(served)

    assert found["content"] == [{"type": "text", "text": right["choices"][0]["message"]["content"]}]
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "tiny")
    assert (found["stop_reason"], found["stop_sequence"]) == ("max_tokens", None)
    assert found["usage"] == {
        "input_tokens": right["usage"]["prompt_tokens"],
        "cache_read_input_tokens": 0,
        "output_tokens": 6,
    }


async def test_what_was_cached_is_counted_apart(served: Served) -> None:
    long = [{"role": "user", "content": "a long prompt " * 5}]
    first = (await ask(served, messages=long))["usage"]
    again = (await ask(served, messages=long))["usage"]

    assert again["cache_read_input_tokens"] == 64
    assert again["input_tokens"] == first["input_tokens"] - 64


async def test_blocks_are_read_as_a_chat(served: Served) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [
                    {"type": "text", "text": "rain"}]},
                {"type": "text", "text": "c"},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sun"}],
        },
    ]  # fmt: skip
    call = {"id": "t", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    right = await chat(
        served,
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [call]},
            {"role": "tool", "content": "rain", "tool_call_id": "t"},
            {"role": "user", "content": "c"},
            {"role": "tool", "content": "sun", "tool_call_id": "t"},
        ],
        max_tokens=6,
    )
    asked = {"messages": messages, "system": [{"type": "text", "text": "S"}]}
    found = await ask(served, **asked)
    counted = await served.http.post(f"{PATH}/count_tokens", json={"model": "tiny", **asked})

    assert found["content"][0]["text"] == right["choices"][0]["message"]["content"]
    tokens = right["usage"]["prompt_tokens"]
    assert counted.json() == {
        "input_tokens": tokens,
        "context_management": {"original_input_tokens": tokens},
    }


async def test_a_stream_tells_of_text_in_order(served: Served) -> None:
    whole = await ask(served)
    found = await events(served)

    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 6,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(event["delta"]["text"] for event in found[2:8])
    assert text == whole["content"][0]["text"]
    start, last = found[0]["message"], found[-2]
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert start["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert last["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == 6


async def test_a_stream_tells_of_calls_in_order(served: Served) -> None:
    asked = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}}
    whole = await ask(served, **asked, max_tokens=200)
    found = await events(served, **asked, max_tokens=200)

    (use,) = whole["content"]
    assert (use["type"], use["name"], use["input"].keys()) == ("tool_use", "weather", {"city"})
    assert whole["stop_reason"] == "tool_use"
    block = found[1]["content_block"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {})
    written = "".join(event["delta"]["partial_json"] for event in found[2:-3])
    assert json.loads(written) == use["input"]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_call_that_the_limit_cut_is_not_to_be_made(served: Served) -> None:
    asked = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 50}
    found = await ask(served, **asked)

    assert found["content"] == [{"type": "text", "text": ""}]
    assert found["stop_reason"] == "max_tokens"


async def test_a_stop_sequence_is_named(served: Served) -> None:
    text = (await ask(served))["content"][0]["text"]
    found = await ask(served, stop_sequences=[text[2:4]])

    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", text[2:4])
    assert found["content"][0]["text"] == text[: text.index(text[2:4])]


async def test_an_output_format_is_kept_to(served: Served) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    form = {"type": "json_schema", "schema": schema}
    found = await ask(served, output_config={"format": form}, max_tokens=50)

    assert json.loads(found["content"][0]["text"])["ok"] in (True, False)
    assert found["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": None}, 400),
        ({"model": "none"}, 404),
        ({"max_tokens": None}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": 99_999}, 400),
        ({"messages": []}, 400),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, 400),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, 400),
        ({"output_config": {"format": {"type": "xml"}}}, 400),
    ],
)
async def test_errors_have_anthropics_shape(
    served: Served, fields: dict[str, Any], status: int
) -> None:
    answer = await served.http.post(PATH, json={**ASKED, **fields})

    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == "error"
    assert answer.json()["error"].keys() == {"type", "message"}
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_failure_of_ours_has_it_too() -> None:
    async with serve(Faults(fail_rate=1.0)) as served:
        answer = await served.http.post(PATH, json={**ASKED, "stream": True})

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
