"""A long chat is tokenised once: prefill says the ids of the prompt, and decode gets them."""

import json
from typing import Any

import pytest

from pdgate.gateway.kv_events.watch import EventWatch
from pdgate.protocols.call import COMPLETIONS
from pdgate.protocols.instance import Role
from tests.support.fleet import BLOCKS, PREFILLED, Engine, as_json, gateway_of, question, says

IDS = list(range(100, 4300))
LONG = [{"role": "user", "content": "one two three " * 1300}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}}


def engines() -> tuple[Engine, Engine]:
    prefill = Engine(Role.PREFILL, says(as_json({**PREFILLED, "prompt_token_ids": IDS})))
    return prefill, Engine(Role.DECODE)


@pytest.mark.parametrize(
    ("settings", "entry"),
    [
        ({}, {}),
        ({"scheduling_mode": "staged"}, {}),
        ({"scheduling_mode": "staged"}, {"protocol": "vllm-mooncake", "generation": "a"}),
    ],
    ids=["nixl", "nixl staged", "mooncake staged"],
)
async def test_decode_gets_the_ids_of_a_long_chat(
    settings: dict[str, Any], entry: dict[str, Any]
) -> None:
    prefill, decode = engines()
    if entry:
        prefill.entry = decode.entry = entry
    async with gateway_of(prefill, decode, **settings) as gateway:
        answer = await gateway.chat(messages=LONG, return_token_ids=False)

    assert answer.status_code == 200, answer.text
    assert prefill.bodies[0]["return_token_ids"] is True
    told = decode.bodies[0]
    assert told["kv_transfer_params"] == {**BLOCKS, "prompt_token_ids": IDS}
    assert told["messages"] == LONG
    # What the client asks of its own answer is decode's to give.
    assert told["return_token_ids"] is False


@pytest.mark.parametrize(
    ("messages", "asked"),
    [
        (question()["messages"], False),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "what is it? " * 2000}, PICTURE],
                }
            ],
            True,
        ),
    ],
    ids=["short", "media"],
)
async def test_short_chats_and_media_go_as_before(messages: Any, asked: bool) -> None:
    prefill, decode = engines()
    async with gateway_of(prefill, decode) as gateway:
        assert (await gateway.chat(messages=messages)).status_code == 200

    assert ("return_token_ids" in prefill.bodies[0]) is asked
    assert decode.bodies[0]["kv_transfer_params"] == BLOCKS


async def test_a_prompt_that_is_to_be_cut_goes_as_before() -> None:
    """Prefill, of which one token is asked, may cut it at another place than decode."""
    prefill, decode = engines()
    async with gateway_of(prefill, decode) as gateway:
        assert (await gateway.chat(messages=LONG, truncate_prompt_tokens=-1)).status_code == 200

    assert "return_token_ids" not in prefill.bodies[0]
    assert decode.bodies[0]["kv_transfer_params"] == BLOCKS


async def test_completions_go_as_before() -> None:
    """There is no template, and stock engines take ids beside messages alone."""
    prefill, decode = engines()
    async with gateway_of(prefill, decode) as gateway:
        asked = {"model": "m", "prompt": "one two three " * 1300}
        assert (await gateway.http.post(COMPLETIONS, json=asked)).status_code == 200

    assert "return_token_ids" not in prefill.bodies[0]
    assert decode.bodies[0]["kv_transfer_params"] == BLOCKS


async def test_the_prefix_index_learns_of_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it hears of engines' caches, which know prompts by their tokens."""
    read: list[Any] = []
    monkeypatch.setattr(EventWatch, "read", lambda _, call, reply: read.append((call, reply)))
    prefill, decode = engines()
    async with gateway_of(prefill, decode, kv_events={"endpoint": "ask"}) as gateway:
        await gateway.chat()
        await gateway.chat({"x-request-id": "long"}, messages=LONG)

    ((call, reply),) = read
    assert call.id == "long"
    assert json.loads(bytes(reply["prompt_token_ids"])) == IDS
