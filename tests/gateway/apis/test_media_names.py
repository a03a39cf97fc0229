"""Names that clients give to media are their key's: nobody has what another key's picture was kept as."""

import json
import time
from typing import Any

import pytest

from pdgate.gateway.apis.media_names import MOST_OBJECTS, kept_apart, may_have_parts
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import CHAT, Call, encode
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, as_json, gateway_of, says
from tests.support.scripted import call_of

ENDED = {"choices": [{"finish_reason": "stop"}]}
PICTURE = {"type": "image_url", "image_url": None, "uuid": "logo"}


def said(call: Call) -> Any:
    return {name: json.loads(bytes(held)) for name, held in call.body.items()}


def test_a_part_keeps_all_but_its_name() -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "uuid"}, PICTURE]
    message = {"role": "user", "content": parts, "x": 1}
    call = call_of(encode({"messages": [message], "tools": [{"uuid": "logo"}]}))

    found = said(kept_apart(call, "a"))

    named = found["messages"][0]["content"][1].pop("uuid")
    assert named != "logo"
    assert found["tools"] == [{"uuid": "logo"}]
    nameless = {name: held for name, held in PICTURE.items() if name != "uuid"}
    assert found["messages"] == [{**message, "content": [parts[0], nameless]}]
    assert call.body["messages"] == call_of(encode({"messages": [message]})).body["messages"]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"content": [PICTURE]}]},
        {"messages": [{"content": [{"type": "tool_result", "content": [PICTURE]}]}]},
        {"input": [{"role": "user", "content": [PICTURE]}]},
        {"content_parts": [PICTURE]},
        {"documents": [{"content": [PICTURE]}, "text"]},
        {"query": {"content": [PICTURE]}},
        {"features": {"mm_hashes": {"image": ["logo"]}, "kwargs_data": None}},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_name_is_one_keys_wherever_it_stands(body: dict[str, Any]) -> None:
    text = encode(body)
    escaped = text.replace(b'"uuid"', rb'"\u0075uid"').replace(b'"mm_', rb'"\u006dm_')

    mine, again = (bytes(said_(text, "a")), bytes(said_(text, "a")))
    theirs, hidden = bytes(said_(text, "b")), bytes(said_(escaped, "a"))

    assert mine == again == hidden
    assert mine != theirs
    assert b"logo" not in mine + theirs


def said_(text: bytes, tenant: str) -> bytes:
    path = CHAT if b"messages" in text else RESPONSES
    return encode(said(kept_apart(call_of(text, path), tenant)))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "what is a uuid?"}]},
        {"messages": "uuid"},
        {"prompt": "uuid"},
        {"features": {"mm_hashes": None}} | {"features": None},
    ],
)
def test_a_call_that_names_nothing_stays_as_it_is(body: dict[str, Any]) -> None:
    call = call_of(encode(body))

    assert said(kept_apart(call, "a")) == body


@pytest.mark.parametrize(
    "text",
    [
        b'{"messages": [{"content": [{"uuid": "logo"}], "x": NaN}]}',
        b'{"messages": [{"content": [{"uuid": "\\ud800"}]}]}',
        b'{"features": {"mm_hashes": ["logo"]}}',
    ],
)
def test_what_only_engines_can_read_is_refused(text: bytes) -> None:
    call = call_of(text, CHAT if b"messages" in text else RESPONSES)

    with pytest.raises(BadRequest):
        kept_apart(call, "a")


@pytest.mark.parametrize(
    ("messages", "may"),
    [("hi", False), ([{"type": "text", "text": "hi"}], True), ([PICTURE], True)],
)
def test_only_a_chat_without_lists_in_its_messages_is_not_looked_through(
    messages: Any, may: bool
) -> None:
    body = encode({"model": "m", "messages": [{"role": "user", "content": messages}]})

    assert may_have_parts(CHAT, body) == may
    assert may_have_parts(RESPONSES, body)
    # UTF-16, which engines read as well, has the same bytes between zeros.
    assert may_have_parts(CHAT, body.decode().encode("utf-16")) == may


def test_more_parts_than_are_looked_at_are_refused_and_none_is_left_out() -> None:
    most = encode({"messages": [{"content": [PICTURE] * (MOST_OBJECTS - 1)}]})
    more = encode({"messages": [{"content": [PICTURE] * MOST_OBJECTS}]})

    assert b"logo" not in said_(most, "a")
    with pytest.raises(BadRequest):
        kept_apart(call_of(more), "a")


def test_a_large_picture_takes_little_time() -> None:
    """Of one that is not decoded: measured against what Python's own decoder takes."""
    picture = {**PICTURE, "image_url": {"url": "data:image/png;base64," + "A" * (8 << 20)}}
    text = encode({"messages": [{"content": [picture]}]})
    call = call_of(text)
    began = time.thread_time()
    json.loads(text)
    json.loads(text)
    usual = time.thread_time() - began

    began = time.thread_time()
    kept_apart(call, "a")

    assert time.thread_time() - began < 4 * usual


async def test_engines_get_no_name_of_a_key_as_another_says_it() -> None:
    keys = tuple(ApiKeyEntry(name=name, sha256=hash_of(name.encode())) for name in ("a", "b"))
    engine = Engine(Role.PLAIN, says(as_json({"id": "x", **ENDED})))
    async with gateway_of(engine, api_keys=keys) as gateway:
        for name in ("a", "b", "a"):
            answer = await gateway.http.post(
                CHAT,
                headers={"authorization": f"Bearer {name}"},
                json={"messages": [{"role": "user", "content": [PICTURE]}]},
            )
            assert answer.status_code == 200

    names = [body["messages"][0]["content"][0]["uuid"] for body in engine.bodies]
    assert names[0] == names[2]
    assert len({"logo", *names}) == 3


async def test_without_keys_a_name_is_everybodys() -> None:
    engine = Engine(Role.PLAIN, says(as_json({"id": "x", **ENDED})))
    async with gateway_of(engine) as gateway:
        await gateway.http.post(CHAT, json={"messages": [{"role": "user", "content": [PICTURE]}]})

    (body,) = engine.bodies
    assert body["messages"][0]["content"] == [PICTURE]
