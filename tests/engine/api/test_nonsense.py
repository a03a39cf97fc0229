"""A body of nonsense is the client's fault: never a 500, whatever stands where."""

import json
import random
from copy import deepcopy
from typing import Any

import pytest

from tests.engine.api.conftest import Served, serve

HI = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
SCHEMA = {
    "type": "object",
    "$defs": {"A": {"enum": ["a", 1]}},
    "properties": {
        "a": {"$ref": "#/$defs/A"},
        "b": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "c": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 2}, {"type": "null"}]},
    },
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"type": "function", "function": {"name": "f"}}

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": HI, "max_tokens": 1, "tools": TOOLS, "tool_choice": CALL},
        {"messages": HI, "max_tokens": 1, "structured_outputs": {"choice": ["a", "b"]}},
        {
            "messages": HI,
            "max_tokens": 1,
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        },
    ],
    "/v1/responses": [
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ],
            "instructions": "x",
            "max_output_tokens": 1,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "stream": True,
        }
    ],
    "/v1/messages": [
        {
            "model": "tiny",
            "max_tokens": 1,
            "system": [{"type": "text", "text": "x"}],
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}],
                },
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "stop_sequences": ["x"],
        }
    ],
    "/v1/embeddings": [{"input": ["a", "b"], "encoding_format": "float"}],
    "/score": [{"text_1": ["a"], "text_2": ["b", "c"]}],
    "/rerank": [{"query": "a", "documents": ["b", "c"], "top_n": 1}],
    "/detokenize": [{"tokens": [1, 2]}],
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
STRANGE: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", [], {}, [None], [[]], [{}], {"type": 3},
    {"type": "object"}, "required", ["a", 1],
]  # fmt: skip
TRIES = 40


def spoilt(body: Any, random: random.Random) -> Any:
    """One value of it is another, or gone."""
    made = deepcopy(body)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(made)
    node, key = random.choice(places)
    if random.random() < 0.2:
        del node[key]
    else:
        node[key] = random.choice(STRANGE)
    return made


@pytest.mark.parametrize("path", BODIES)
async def test_nonsense_is_no_failure_of_ours(path: str) -> None:
    async with serve() as served:
        for seed in range(TRIES):
            drawn = random.Random(f"{path}{seed}")
            body = spoilt(drawn.choice(BODIES[path]), drawn)
            answer = await served.http.post(path, content=json.dumps(body))
            assert answer.status_code in (200, 400, 404), (body, answer.text)
        for body in BODIES[path]:
            assert (await served.http.post(path, json=body)).status_code == 200


async def test_a_constraint_nested_too_deeply_is_refused(served: Served) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(400):
        schema = {"type": "array", "maxItems": 1, "items": schema}
    body = {"messages": HI, "max_tokens": 1, "structured_outputs": {"json": schema}}

    answer = await served.http.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert "deep" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "Hi", "instructions": "\ud800", "max_output_tokens": 1}),
        ("/rerank", {"query": "a", "documents": ["\ud800"]}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"choice": ["\ud800"]}}),
    ],
)
async def test_half_a_character_is_a_question_mark(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    """JSON can carry it, and an answer that repeats it could not be written."""
    answer = await served.http.post(path, content=json.dumps(body))

    assert answer.status_code == 200, answer.text
    assert "?" in answer.text
