"""Media of /v1/responses and /v1/messages, which are encoded as those of chats are."""

import asyncio
import json
from typing import Any

import pytest

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.instance import Role
from pdgate.protocols.media import MOST_ITEMS, MOST_PARTS
from tests.gateway.apis.words import (
    BLOCK,
    DELTA,
    OPENED,
    READ,
    RESPONDED,
    SAID,
    STARTED,
    event,
)
from tests.support.fleet import (
    BLOCKS,
    Engine,
    Gateway,
    as_json,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Peer

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

LINK, DATA = "https://example.com/a.png", "iVBORw0KGgo="
PIXEL = f"data:image/png;base64,{DATA}"
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
RESULT = "https://example.com/result.png"
PLACES = {"hash": {"peer_host": "10.0.0.9", "peer_port": 7, "item_indices": [0]}}

BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {
        "model": "m",
        "mm_processor_kwargs": {"num_crops": 4},
        "input": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What are these?"},
                    {"type": "input_image", "image_url": LINK, "detail": "low", "uuid": "mine"},
                    {"type": "input_image", "image_url": PIXEL},
                    {"type": "input_image", "image_url": PIXEL},
                    SOUND,
                ],
            },
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "image_url": RESULT}],
            },
        ],
    },
    MESSAGES: {
        "model": "m",
        "max_tokens": 8,
        "mm_processor_kwargs": {"num_crops": 4},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What are these?"},
                    {"type": "image", "source": {"type": "url", "url": LINK}},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": DATA},
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [
                            {"type": "text", "text": "Seen."},
                            {"type": "image", "source": {"type": "url", "url": RESULT}},
                        ],
                    },
                ],
            },
        ],
    },
}


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


ENCODED: dict[str, list[dict[str, Any]]] = {
    RESPONSES: [
        {**image(LINK, detail="low"), "uuid": "mine"},
        image(PIXEL),
        SOUND,
        image(RESULT),
    ],
    MESSAGES: [image(LINK), image(PIXEL), image(RESULT)],
}
ALONG: dict[str, dict[str, Any]] = {
    RESPONSES: {"mm_processor_kwargs": {"num_crops": 4}},
    # Prefill does not read it there.
    MESSAGES: {},
}
ANSWERS: dict[str, Any] = {RESPONSES: RESPONDED, MESSAGES: SAID}
EVENTS: dict[str, tuple[bytes, ...]] = {
    RESPONSES: (*OPENED, DELTA),
    MESSAGES: (STARTED, BLOCK),
}
paths = pytest.mark.parametrize("path", [RESPONSES, MESSAGES])


def trio(path: str) -> tuple[Engine, Engine, Engine]:
    return (
        Engine(Role.ENCODE, says(as_json({"choices": [], "ec_transfer_params": PLACES}))),
        Engine(Role.PREFILL, says(as_json(READ))),
        Engine(Role.DECODE, says(as_json(ANSWERS[path]))),
    )


def of(path: str, *parts: Any) -> dict[str, Any]:
    """A body with one message of these parts."""
    body = BODIES[path]
    field = "input" if path == RESPONSES else "messages"
    return {**body, field: [{"role": "user", "content": list(parts)}]}


def picture(path: str, url: str = LINK) -> dict[str, Any]:
    if path == RESPONSES:
        return {"type": "input_image", "image_url": url}
    return {"type": "image", "source": {"type": "url", "url": url}}


@paths
async def test_each_item_is_encoded_once_as_a_part_of_a_chat(path: str) -> None:
    encode, prefill, decode = trio(path)
    async with gateway_of(encode, prefill, decode) as gateway:
        answer = await gateway.http.post(path, json=BODIES[path])

    assert answer.json() == ANSWERS[path]
    assert {call.line.split()[1] for call in encode.calls} == {b"/v1/chat/completions"}
    rest = {"model": "m", "max_tokens": 1, "stream": False, **ALONG[path]}
    wanted = [{**rest, "messages": [{"role": "user", "content": [one]}]} for one in ENCODED[path]]
    # They go out together.
    assert sorted(encode.bodies, key=json.dumps) == sorted(wanted, key=json.dumps)
    for side in (prefill, decode):
        [body] = side.bodies
        assert body["ec_transfer_params"] == PLACES
        field = "input" if path == RESPONSES else "messages"
        assert body[field] == BODIES[path][field]
    assert decode.bodies[0]["kv_transfer_params"] == BLOCKS


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (RESPONSES, {"type": "input_text", "text": "an input_image"}),
        (RESPONSES, {"type": "input_image", "file_id": "file-1"}),
        (RESPONSES, {"type": "input_image", "image_url": {"url": LINK}}),
        (RESPONSES, "input_image"),
        (MESSAGES, {"type": "text", "text": 'an "image"'}),
        (MESSAGES, {"type": "image", "source": {"type": "url"}}),
        (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "file-1"}}),
        (MESSAGES, {"type": "image"}),
        (MESSAGES, {"type": "tool_result", "content": 'an "image"'}),
    ],
    ids=str,
)
async def test_what_has_no_media_asks_no_encoder(path: str, part: Any) -> None:
    encode, prefill, decode = trio(path)
    async with gateway_of(encode, prefill, decode) as gateway:
        answer = await gateway.http.post(path, json=of(path, part))

    assert answer.status_code == 200, answer.text
    assert not encode.calls
    assert "ec_transfer_params" not in prefill.bodies[0]


def last(path: str, told: dict[str, Any]) -> list[bytes]:
    """The events that end a stream, of an engine that tells where things lie."""
    if path == RESPONSES:
        return [event("response.completed", response={**RESPONDED, **told})]
    delta = event("message_delta", delta={"stop_reason": "end_turn"}, **told)
    return [delta, event("message_stop")]


async def refused(gateway: Gateway, path: str, body: Any) -> str:
    """What is said, in the API's own words."""
    answer = await gateway.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    said = answer.json()
    if path == MESSAGES:
        assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert said["error"]["param"] == "input"
    message: str = said["error"]["message"]
    return message


@paths
async def test_media_and_parts_without_end_are_refused(path: str) -> None:
    encode, prefill, decode = trio(path)
    many = [picture(path) for _ in range(MOST_ITEMS + 1)]
    empty: list[Any] = [{} for _ in range(MOST_PARTS)]
    async with gateway_of(encode, prefill, decode) as gateway:
        assert str(MOST_ITEMS) in await refused(gateway, path, of(path, *many))
        assert str(MOST_PARTS) in await refused(gateway, path, of(path, *empty, picture(path)))
        if path == MESSAGES:
            nested = {"type": "tool_result", "tool_use_id": "t", "content": [*empty]}
            body = of(path, nested, picture(path))
            assert str(MOST_PARTS) in await refused(gateway, path, body)

    assert not encode.calls
    assert not prefill.calls


@paths
async def test_a_picture_that_is_none_is_the_clients_fault_in_its_own_words(path: str) -> None:
    encode, prefill, decode = trio(path)
    encode.script = says(engine_error(b"400 Bad Request", "cannot identify image"))
    async with gateway_of(encode, prefill, decode) as gateway:
        answer = await gateway.http.post(path, json=of(path, picture(path)))

    assert answer.status_code == 400
    assert "cannot identify image" in answer.json()["error"]["message"]
    assert (answer.json().get("type") == "error") is (path == MESSAGES)
    assert not prefill.calls


@paths
async def test_a_client_reads_nothing_of_where_embeddings_lie(path: str) -> None:
    encode, prefill, decode = trio(path)
    told = {"ec_transfer_params": PLACES, "kv_transfer_params": BLOCKS}
    decode.script = says(as_json({**ANSWERS[path], **told}))
    async with gateway_of(encode, prefill, decode) as gateway:
        answer = await gateway.http.post(path, json=of(path, picture(path)))
        decode.script = streams(*EVENTS[path], *last(path, told))
        stream = await gateway.http.post(path, json={**of(path, picture(path)), "stream": True})

    assert answer.json() == ANSWERS[path]
    assert "10.0.0.9" not in stream.text
    assert "transfer_params" not in stream.text
    assert ("resp_1" if path == RESPONSES else "message_stop") in stream.text


@paths
async def test_a_client_may_not_say_where_embeddings_lie(path: str) -> None:
    encode, prefill, decode = trio(path)
    async with gateway_of(encode, prefill, decode) as gateway:
        body = {**of(path, picture(path)), "ec_transfer_params": PLACES}
        answer = await gateway.http.post(path, json=body)

    assert answer.status_code == 400
    assert "ec_transfer_params" in answer.json()["error"]["message"]
    assert not encode.calls


@paths
async def test_long_bodies_are_looked_through_too(path: str) -> None:
    encode, prefill, decode = trio(path)
    text = "input_text" if path == RESPONSES else "text"
    long = {"type": text, "text": "a" * 300_000}
    async with gateway_of(encode, prefill, decode) as gateway:
        for parts in ((long,), (long, picture(path))):
            answer = await gateway.http.post(path, json=of(path, *parts))
            assert answer.status_code == 200, answer.text

    assert [body["messages"][0]["content"] for body in encode.bodies] == [[image(LINK)]]


@paths
async def test_a_client_that_leaves_ends_what_is_encoded_for_it(path: str) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def waits(peer: Peer) -> None:
        came.set()
        await peer.gone()
        left.set()

    encode, prefill, decode = trio(path)
    encode.script = waits
    async with gateway_of(encode, prefill, decode) as gateway:
        asking = asyncio.create_task(gateway.http.post(path, json=of(path, picture(path))))
        await came.wait()
        asking.cancel()
        await left.wait()
    assert not prefill.calls
