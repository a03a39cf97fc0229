"""Media of a chat, each of which is encoded before prefill has the call."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from pdgate.forwarders.encoding import ASIDE_BYTES
from pdgate.gateway.config.sections import AdmissionSection
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from pdgate.protocols.media import MOST_HANDLE_BYTES
from tests.gateway.admission.test_waiting_calls import until_waiting
from tests.support.fleet import (
    ANSWER,
    JSON_TYPE,
    PREFILLED,
    Engine,
    Held,
    as_json,
    engine_error,
    gateway_of,
    post,
    says,
    streams,
)
from tests.support.raw_server import Peer

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}
LINKED = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
TEXT = {"type": "text", "text": "What is this?"}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": list(parts)}]


def where(item: Any) -> dict[str, Any]:
    """What an encoder says of an item; made of the item, as the hash by which it is known."""
    name = f"hash-of-{json.dumps(item, sort_keys=True)}"
    return {name: {"peer_host": "10.0.0.9", "peer_port": 7, "item_indices": [0], "new_key": 1.0}}


async def encodes(peer: Peer) -> None:
    [message] = json.loads(peer.request.body)["messages"]
    [item] = message["content"]
    await peer.send(as_json({**ANSWER, "ec_transfer_params": where(item)}))


def trio(script: Any = encodes, encoders: int = 1) -> tuple[list[Engine], Engine, Engine]:
    return (
        [Engine(Role.ENCODE, script) for _ in range(encoders)],
        Engine(Role.PREFILL, None),
        Engine(Role.DECODE, None),
    )


async def test_each_item_is_encoded_once_and_prefill_and_decode_are_told_where_all_are() -> None:
    items = [IMAGE, LINKED, VIDEO, SOUND]
    [encoder], prefill, decode = trio()
    async with gateway_of(encoder, prefill, decode) as gateway:
        answer = await gateway.chat(
            messages=said(TEXT, *items, IMAGE), mm_processor_kwargs={"num_crops": 4}, seed=7
        )

    assert answer.status_code == 200, answer.text
    asked = {json.dumps(body["messages"][0]["content"][0]) for body in encoder.bodies}
    assert asked == {json.dumps(item) for item in items}
    assert len(encoder.bodies) == len(items)
    for body in encoder.bodies:
        assert {**body, "messages": None} == {
            "model": "m",
            "mm_processor_kwargs": {"num_crops": 4},
            "messages": None,
            "max_tokens": 1,
            "stream": False,
        }
    everywhere = {name: at for item in items for name, at in where(item).items()}
    for side in (prefill, decode):
        [body] = side.bodies
        assert body["ec_transfer_params"] == everywhere
        assert body["messages"] == said(TEXT, *items, IMAGE)


async def test_items_are_encoded_at_the_same_time_under_ids_of_their_own() -> None:
    held = Held()
    [encoder], prefill, decode = trio(held)
    async with gateway_of(encoder, prefill, decode) as gateway, asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat(messages=said(IMAGE, SOUND, VIDEO)))
        calls = [await held.next() for _ in range(3)]

        assert not prefill.calls
        ids = {call.peer.request.header(b"x-request-id") for call in calls}
        assert len(ids) == 3
        for call in calls:
            await encodes(call.peer)
        assert (await asking).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What is an image_url?"}],
        said(TEXT),
        said({"type": "text", "text": "input_audio"}),
        [{"role": "user", "content": [{"type": 1, "image_url": 1}, "image_url", 7]}],
        "image_url",
    ],
    ids=str,
)
async def test_what_has_no_media_asks_no_encoder(messages: Any) -> None:
    [encoder], prefill, decode = trio()
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=messages)).status_code == 200

    assert not encoder.calls
    assert "ec_transfer_params" not in prefill.bodies[0]


async def test_media_beside_what_is_no_object_are_encoded() -> None:
    [encoder], prefill, decode = trio()
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=said("What is this?", IMAGE))).status_code == 200

    assert [body["messages"][0]["content"] for body in encoder.bodies] == [[IMAGE]]
    assert prefill.bodies[0]["ec_transfer_params"] == where(IMAGE)


async def test_media_of_long_messages_are_encoded_too() -> None:
    [encoder], prefill, decode = trio()
    long = "a" * ASIDE_BYTES
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=said(long))).status_code == 200
        assert not encoder.calls
        assert (await gateway.chat(messages=said(long, IMAGE))).status_code == 200

    assert [body["messages"][0]["content"] for body in encoder.bodies] == [[IMAGE]]


@pytest.mark.parametrize("parts", [[1] * 100_000, [{}] * 80_000], ids=["no parts", "empty"])
async def test_parts_without_end_are_refused_and_hold_up_nothing(parts: list[Any]) -> None:
    [encoder], prefill, decode = trio()
    async with gateway_of(encoder, prefill, decode) as gateway:
        answer = await gateway.chat(messages=said(*parts, IMAGE))

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert not encoder.calls
    assert not prefill.calls


async def test_an_encoder_that_says_too_much_is_at_fault() -> None:
    async def long(peer: Peer) -> None:
        told = {"hash": {"peer_host": "a" * MOST_HANDLE_BYTES}}
        await peer.send(as_json({**ANSWER, "ec_transfer_params": told}))

    [encoder], prefill, decode = trio(long)
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=said(IMAGE))).status_code == 502
    assert not prefill.calls


async def test_an_encoder_that_shares_a_store_says_nothing_and_the_call_goes_on() -> None:
    [encoder], prefill, decode = trio(None)
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=said(IMAGE))).status_code == 200

    assert len(encoder.calls) == 1
    assert "ec_transfer_params" not in prefill.bodies[0]


async def test_an_item_that_fails_is_encoded_elsewhere() -> None:
    async def fails(peer: Peer) -> None:
        await peer.send(engine_error(b"500 Oh", "no"))

    encoders, prefill, decode = trio(encoders=2)
    sick, well = encoders
    sick.script = fails
    async with gateway_of(*encoders, prefill, decode, max_attempts=2) as gateway:
        for number in range(8):
            link = {"type": "image_url", "image_url": {"url": f"https://example.com/{number}"}}
            assert (await gateway.chat(messages=said(link))).status_code == 200

    assert sick.calls
    assert len(well.calls) == 8


async def test_the_same_item_goes_where_it_was_encoded() -> None:
    encoders, prefill, decode = trio(encoders=4)
    async with gateway_of(*encoders, prefill, decode) as gateway:
        for _ in range(8):
            assert (await gateway.chat(messages=said(IMAGE))).status_code == 200

    assert sorted(len(encoder.calls) for encoder in encoders) == [0, 0, 0, 8]


async def test_what_no_encoder_can_do_is_an_error_and_prefill_is_not_asked() -> None:
    async def fails(peer: Peer) -> None:
        await peer.send(engine_error(b"500 Oh", "no"))

    encoders, prefill, decode = trio(fails, encoders=2)
    async with gateway_of(*encoders, prefill, decode) as gateway:
        answer = await gateway.chat(messages=said(IMAGE))

    assert answer.status_code == 502
    assert "the encode engine" in answer.json()["error"]["message"]
    assert not prefill.calls


async def test_a_picture_that_is_none_is_the_clients_fault() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.send(engine_error(b"400 Bad Request", "cannot identify image"))

    encoders, prefill, decode = trio(refuses, encoders=2)
    async with gateway_of(*encoders, prefill, decode) as gateway:
        answer = await gateway.chat(messages=said(IMAGE))

    assert answer.status_code == 400
    assert "cannot identify image" in answer.text
    assert sum(len(encoder.calls) for encoder in encoders) == 1
    assert not prefill.calls


async def test_one_item_that_fails_ends_the_others() -> None:
    held = Held()
    [encoder], prefill, decode = trio(held)
    async with gateway_of(encoder, prefill, decode) as gateway, asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat(messages=said(IMAGE, SOUND)))
        one, other = [await held.next() for _ in range(2)]
        await one.peer.send(engine_error(b"400 Bad Request", "no"))

        await other.left
        assert (await asking).status_code == 400


async def test_a_client_that_leaves_ends_what_is_encoded_for_it() -> None:
    held = Held()
    [encoder], prefill, decode = trio(held)
    async with gateway_of(encoder, prefill, decode) as gateway:
        _, writer = await gateway.wire()
        body = json.dumps({"model": "m", "messages": said(IMAGE, SOUND)}).encode()
        writer.write(post(body, JSON_TYPE, path=CHAT))
        calls = [await held.next() for _ in range(2)]
        writer.close()

        for call in calls:
            await call.left
    assert not prefill.calls


async def test_another_attempt_encodes_again() -> None:
    """Of what prefill did not find it is not known whether the encoder still has it."""
    fails = iter([True, False])

    async def once(peer: Peer) -> None:
        await peer.send(engine_error(b"500 Oh", "no") if next(fails) else as_json(PREFILLED))

    [encoder], prefill, decode = trio()
    prefill.script = once
    async with gateway_of(encoder, prefill, decode) as gateway:
        assert (await gateway.chat(messages=said(IMAGE))).status_code == 200

    assert len(encoder.calls) == 2
    assert prefill.bodies[1]["ec_transfer_params"] == where(IMAGE)


async def test_too_many_media_are_refused_and_a_field_that_is_no_object_is_the_encoders_fault() -> (
    None
):
    async def odd(peer: Peer) -> None:
        await peer.send(as_json({**ANSWER, "ec_transfer_params": [1]}))

    [encoder], prefill, decode = trio(odd)
    async with gateway_of(encoder, prefill, decode) as gateway:
        many = await gateway.chat(messages=said(*[IMAGE] * 257))
        assert not encoder.calls
        wrong = await gateway.chat(messages=said(IMAGE))

    assert (many.status_code, many.json()["error"]["param"]) == (400, "messages")
    assert wrong.status_code == 502
    assert not prefill.calls


async def test_media_are_encoded_before_a_call_waits_for_its_turn() -> None:
    """Else two calls would have the one place at prefill when their media are encoded."""
    encoding, reading = Held(), Held()
    [encoder], prefill, decode = trio(encoding)
    prefill.script = reading
    limits = AdmissionSection(prefill_concurrency=1)
    async with gateway_of(encoder, prefill, decode, admission=limits) as gateway:
        asking = [asyncio.create_task(gateway.chat(messages=said(IMAGE))) for _ in range(2)]
        for held in [await encoding.next() for _ in asking]:
            await encodes(held.peer)
        first = await reading.next()
        await until_waiting(gateway, 1)
        assert len(prefill.calls) == 1

        await first.peer.send(as_json(PREFILLED))
        await first.peer.close()
        await (await reading.next()).peer.send(as_json(PREFILLED))

        assert [(await call).status_code for call in asking] == [200, 200]
    assert [body["ec_transfer_params"] for body in prefill.bodies] == [where(IMAGE)] * 2


async def test_media_of_a_call_that_is_refused_are_not_encoded() -> None:
    """Else a full line would keep encode engines from those who are in it."""
    answering = Held()
    [encoder], prefill, decode = trio()
    decode.script = answering
    limits = AdmissionSection(decode_concurrency=1, waiting=1)
    async with (
        gateway_of(encoder, prefill, decode, admission=limits) as gateway,
        asyncio.TaskGroup() as group,
    ):
        asking = [group.create_task(gateway.chat(messages=said(TEXT)))]
        first = await answering.next()
        asking.append(group.create_task(gateway.chat(messages=said(TEXT))))
        await until_waiting(gateway, 1)

        assert (await gateway.chat(messages=said(TEXT, LINKED))).status_code == 429
        assert not encoder.calls

        for _ in asking:
            await first.peer.send(as_json(ANSWER))
            await first.peer.close()
            if len(decode.calls) == 1:
                first = await answering.next()
        for one in asking:
            assert (await one).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_reads_nothing_of_where_embeddings_and_kv_lie(stream: bool) -> None:
    """That the body has such a field now does not make it one that the client has set."""
    told = {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "ec_transfer_params": where(IMAGE)}
    [encoder], prefill, decode = trio()
    if stream:
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
        event = json.dumps({"choices": [choice], **told}).encode()
        decode.script = streams(b"data: " + event + b"\n\n", b"data: [DONE]\n\n")
    else:
        decode.script = says(as_json({**ANSWER, **told}))
    async with gateway_of(encoder, prefill, decode) as gateway:
        answer = await gateway.chat(messages=said(IMAGE), stream=stream)

    assert answer.status_code == 200
    assert "10.0.0." not in answer.text
    assert "transfer_params" not in answer.text


async def test_the_stage_is_counted() -> None:
    [encoder], prefill, decode = trio()
    async with gateway_of(encoder, prefill, decode, debug_headers=True) as gateway:
        answer = await gateway.chat(messages=said(IMAGE))
        metrics = await gateway.metrics()

    assert answer.headers["x-pd-encode"] == "encode-0"
    stages = counted(metrics, "pdgate_stage_seconds_count")
    assert stages["encode"] == 1


def counted(metrics: dict[tuple[str, ...], float], name: str) -> dict[str, float]:
    """By the stage, which is one of the labels."""
    rows: Sequence[tuple[str, ...]] = [key for key in metrics if key[0] == name]
    return {label: metrics[key] for key in rows for label in key[1:] if metrics[key]}
