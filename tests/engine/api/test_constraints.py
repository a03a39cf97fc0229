"""Answers that have to be something: JSON of a schema, one of some texts, calls of tools."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pdgate.engine.api.pieces import collected, reader
from pdgate.engine.api.tools import ToolCalls
from pdgate.protocols.call import CHAT, COMPLETIONS
from tests.engine.api.conftest import Served
from tests.engine.api.test_answers import events

HI = [{"role": "user", "content": "Hi"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather", city={"type": "string"}, days={"type": "integer"}), tool("stop")]
WEATHER = {"type": "function", "function": {"name": "weather"}}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


async def chat(served: Served, **fields: Any) -> dict[str, Any]:
    # What has no temperature is drawn, and each draw is to end before the model's context does.
    answer = await served.http.post(CHAT, json={"messages": HI, "seed": 7, **fields})
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json(), strict=True)
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


@pytest.mark.parametrize("temperature", [0, 1.5])
async def test_an_answer_is_of_its_schema(served: Served, temperature: float) -> None:
    choice = await chat(served, response_format=AS_PERSON, temperature=temperature, ignore_eos=True)

    person = json.loads(choice["message"]["content"])
    assert list(person) == ["name", "age"]
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)
    assert choice["finish_reason"] == "stop"


async def test_structured_outputs_are_kept_to_in_both_apis(served: Served) -> None:
    asked = {"structured_outputs": {"choice": ["yes", "no", "née"]}, "temperature": 0}
    said = (await chat(served, **asked))["message"]["content"]
    text = await served.http.post(COMPLETIONS, json={"prompt": "x", **asked})
    found = await chat(served, structured_outputs={"json": json.dumps(PERSON)})
    free = await chat(served, structured_outputs={"json_object": True})

    assert said in ("yes", "no", "née")
    assert text.json()["choices"][0]["text"] in ("yes", "no", "née")
    assert json.loads(found["message"]["content"]).keys() == {"name", "age"}
    assert isinstance(json.loads(free["message"]["content"]), dict)


async def test_a_limit_cuts_what_would_have_a_shape(served: Served) -> None:
    choice = await chat(served, response_format=AS_PERSON, max_tokens=5)

    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == '{"nam'


async def test_the_tool_that_is_named_is_called(served: Served) -> None:
    choice = await chat(served, tools=TOOLS, tool_choice=WEATHER, temperature=0)

    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "days"}
    assert choice["message"]["content"] == ""
    # vLLM says so of a call that the model did not choose.
    assert choice["finish_reason"] == "stop"


async def test_some_tool_is_called_where_one_is_required(served: Served) -> None:
    seen = set()
    for seed in range(24):
        choice = await chat(served, tools=TOOLS, tool_choice="required", seed=seed, temperature=3)
        calls = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert 1 <= len(calls) <= 2
        assert len({call["id"] for call in calls}) == len(calls)
        for call in calls:
            keys = {"weather": {"city", "days"}, "stop": set()}[call["function"]["name"]]
            assert json.loads(call["function"]["arguments"]).keys() == keys
        seen |= {len(calls)}
    assert seen == {1, 2}


async def test_calls_that_may_not_be_parallel_are_one(served: Served) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(4):
        choice = await chat(served, **asked, seed=seed, temperature=3)
        assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("choice", ["required", WEATHER])
async def test_a_stream_of_calls_says_what_the_whole_answer_says(
    served: Served, choice: Any
) -> None:
    asked = {"messages": HI, "tools": TOOLS, "tool_choice": choice, "max_tokens": None}
    whole = await chat(served, **asked, temperature=0)
    pieces = await events(served, CHAT, **asked)

    found: list[dict[str, str]] = []
    for piece in pieces[1:]:
        ChatCompletionChunk.model_validate(piece, strict=True)
        for delta in piece["choices"][0]["delta"].get("tool_calls", ()):
            if "id" in delta:
                found.append({"name": delta["function"]["name"], "arguments": ""})
            found[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert found == [call["function"] for call in whole["message"]["tool_calls"]]
    assert pieces[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    # The role, the call that begins, the rest of its arguments, the end.
    assert len(pieces) >= 4


async def test_tools_that_need_not_be_called_are_not(served: Served) -> None:
    plain = await chat(served, temperature=0, max_tokens=8)
    for choice in ("auto", "none", None):
        found = await chat(served, temperature=0, max_tokens=8, tools=TOOLS, tool_choice=choice)
        assert found["message"] == plain["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "schema": {"type": "string", "pattern": "a"}}}}, "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}},
         "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS},
         "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "custom", "custom": {"name": "x"}}]},
         "tools"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "x", "parameters": {"type": "string"}}}]}, "tools"),
        ({"tool_choice": "required", "tools": [tool("x", a={"type": "integer", "minimum": 1})]},
         "tools"),
    ],
)  # fmt: skip
async def test_what_cannot_be_kept_to_is_refused(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    answer = await served.http.post(CHAT, json={"messages": HI, **fields})

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


CALLS = '[{"name":"a","parameters":{"x":"}{\\"]"}},{"name":"b\\"c","parameters":{}}]'


@pytest.mark.parametrize("size", [1, 2, 7, len(CALLS)])
def test_calls_do_not_depend_on_where_their_text_is_cut(size: int) -> None:
    reading = reader(ToolCalls(None, (), 2))
    pieces = [
        piece
        for start in range(0, len(CALLS), size)
        for piece in reading.feed(CALLS[start : start + size])
    ]

    text, calls = collected(pieces)
    assert text == ""
    assert [(call.name, call.arguments) for call in calls] == [
        ("a", '{"x":"}{\\"]"}'),
        ('b"c', "{}"),
    ]
