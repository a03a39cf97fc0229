"""What of prefill's answer decode is told of a prompt's tokens."""

import json
from typing import Any

import msgspec
import pytest

from pdgate.forwarders.token_ids import asking, handed_on, may_have_ids
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import COMPLETIONS, Raw, encode, parse_object
from tests.support.scripted import chat

PARAMS = {"do_remote_prefill": True, "remote_host": "192.0.2.7", "remote_block_ids": [[1, 2]]}
TEXT = [
    {"role": "system", "content": "You are [{brief}]"},
    {"role": "user", "content": [{"type": "text", "text": 'an "image_url"'}, {"text": "?"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "x"}]},
    {"role": "tool", "content": "", "tool_call_id": "x"},
]
IDS = [1, 22, 333]


def sent(messages: Any, params: Any, **reply: Any) -> dict[str, Any]:
    """What decode gets, read from the bytes."""
    body = parse_object(encode({"model": "m", "messages": messages, "top_k": 1}))
    if params is not None:
        body["kv_transfer_params"] = Raw(encode(params)) if isinstance(params, dict) else params
    made = handed_on(body, "kv_transfer_params", parse_object(encode(reply)))
    found: dict[str, Any] = json.loads(encode(made))
    return found


@pytest.mark.parametrize("params", [PARAMS, {}, Raw(b"{ }"), Raw(b' {"a" : 1}'.strip())])
def test_decode_gets_the_ids_beside_what_the_engine_wrote(params: Any) -> None:
    found = sent(TEXT, params, prompt_token_ids=IDS)

    written = params if isinstance(params, dict) else json.loads(bytes(params))
    assert found["kv_transfer_params"] == {"prompt_token_ids": IDS, **written}
    # Which is still read of it: tool calls, and what the answer is to look like.
    assert (found["messages"], found["top_k"]) == (TEXT, 1)


def test_params_that_the_gateway_wrote_itself_get_them_too() -> None:
    """As Mooncake's, which are no answer of an engine."""
    body = {"messages": Raw(encode(TEXT)), "kv_transfer_params": {"transfer_id": "x"}}

    made = handed_on(body, "kv_transfer_params", parse_object(encode({"prompt_token_ids": IDS})))

    written = json.loads(encode(made))["kv_transfer_params"]
    assert written == {"transfer_id": "x", "prompt_token_ids": IDS}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"image_url": "data:image/png;base64,AAAA"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "text", "text": "a", "uuid": "image-1"},
        {"type": "\u0069mage_url", "image_url": {"url": "x"}},
        {"type": 7, "text": "a"},
        "a text",
    ],
    ids=str,
)
def test_ids_do_not_say_what_a_picture_shows(part: Any) -> None:
    messages = [
        *TEXT,
        {"role": "user", "content": [{"type": "text", "text": "what is this?"}, part]},
    ]

    assert sent(messages, PARAMS, prompt_token_ids=IDS)["kv_transfer_params"] == PARAMS


@pytest.mark.parametrize("content", [b"{}", b"7", b"true"])
def test_content_that_is_neither_text_nor_parts_is_not_vouched_for(content: bytes) -> None:
    messages = Raw(b'[{"role": "user", "content": %s}]' % content)

    assert sent(messages, PARAMS, prompt_token_ids=IDS)["kv_transfer_params"] == PARAMS


def test_a_name_that_is_written_otherwise_hides_no_picture() -> None:
    shown = Raw(rb'[{"role": "user", "\u0063ontent": [{"type": "image_url"}]}]')

    assert sent(shown, PARAMS, prompt_token_ids=IDS)["kv_transfer_params"] == PARAMS


@pytest.mark.parametrize("params", [b'"x"', b"[1]", b"7"])
def test_params_that_are_no_object_are_passed_on_as_they_are(params: bytes) -> None:
    found = sent(TEXT, Raw(params), prompt_token_ids=IDS)

    assert found["kv_transfer_params"] == json.loads(params)


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ({}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "auto", "n": 2}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, True),
        ({"truncate_prompt_tokens": -1}, False),
        ({"truncate_prompt_tokens": None}, False),
        ({"echo": True}, False),
        ({"prompt_logprobs": 1}, False),
        ({"return_token_offsets": True}, False),
    ],
    ids=str,
)
def test_ids_are_asked_for_where_nothing_but_the_messages_makes_the_prompt(
    more: dict[str, Any], may: bool
) -> None:
    assert may_have_ids(chat(**more)) is may


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES])
def test_of_other_apis_none_are_asked_for(path: str) -> None:
    assert not may_have_ids(msgspec.structs.replace(chat(), path=path))


@pytest.mark.parametrize(
    "said", [{}, {"prompt_token_ids": None}, {"prompt_token_ids": []}, {"prompt_token_ids": "1"}]
)
def test_an_engine_that_answers_no_ids_is_served_as_before(said: dict[str, Any]) -> None:
    assert sent(TEXT, PARAMS, **said)["kv_transfer_params"] == PARAMS


@pytest.mark.parametrize("messages", ["a", 7, None, [7], [{"content": [[]]}], {"role": "user"}])
def test_messages_that_are_odd_are_for_the_engine_to_refuse(messages: Any) -> None:
    assert sent(messages, PARAMS, prompt_token_ids=IDS)["kv_transfer_params"] == PARAMS


def test_without_anything_to_take_over_there_is_nothing_to_say() -> None:
    """TPU engines keep nothing of a prompt under one block."""
    assert "kv_transfer_params" not in sent(TEXT, None, prompt_token_ids=IDS)


def test_prefill_is_asked_for_them() -> None:
    assert json.loads(encode(asking({"max_tokens": 1}))) == {
        "max_tokens": 1,
        "return_token_ids": True,
    }
