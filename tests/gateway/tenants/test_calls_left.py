"""What is left of a key's calls a minute, as OpenAI's own client reads it."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from pdgate.protocols.instance import Role
from tests.gateway.tenants.test_at_the_door import DONE, END, KEY, SECRET, key, word
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    gateway_of,
    streams,
)

pytestmark = pytest.mark.usefixtures("front_end")

HI: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PREFIX = "x-ratelimit-"


def client(gateway: Gateway) -> AsyncOpenAI:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    return AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=0, timeout=PATIENCE_SECONDS)


def of_requests(headers: Any) -> tuple[str, str, float]:
    """Limit, remaining, and the seconds of the reset."""
    limit, left, reset = (
        headers[f"{PREFIX}{what}-requests"] for what in ("limit", "remaining", "reset")
    )
    minutes, _, seconds = reset.rpartition("m")
    return limit, left, 60 * float(minutes or 0) + float(seconds.removesuffix("s"))


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_and_refusals_say_what_is_left(stream: bool) -> None:
    engine = Engine(Role.PLAIN, streams(word("a"), END, DONE) if stream else None)
    # A call comes back every half minute.
    limits = key(calls_per_minute=2)
    async with gateway_of(engine, api_keys=(limits,)) as gateway, client(gateway) as asking:
        create = asking.chat.completions.with_raw_response.create
        first, second = [await create(**HI, stream=stream) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            await create(**HI, stream=stream)

    limit, left, reset = of_requests(first.headers)
    assert (limit, left) == ("2", "1")
    assert 0 < reset <= 30
    limit, left, later = of_requests(second.headers)
    assert (limit, left) == ("2", "0")
    assert reset < later <= 60
    said = refused.value.response.headers
    limit, left, reset = of_requests(said)
    assert (limit, left) == ("2", "0")
    # Until all may come again; the next one may after `Retry-After`.
    assert 30 < reset <= later
    assert 0 < int(said["retry-after"]) <= 30
    assert not [name for name in first.headers if name.startswith(PREFIX) and "token" in name]


async def test_a_key_without_limits_is_told_nothing() -> None:
    engine = Engine(Role.PLAIN)
    async with gateway_of(engine, api_keys=(key(),)) as gateway, client(gateway) as asking:
        answer = await asking.chat.completions.with_raw_response.create(**HI)
    assert not [name for name in answer.headers if name.startswith(PREFIX)]


async def test_where_too_many_run_the_calls_of_the_minute_are_told_too() -> None:
    held = Held()
    limits = key(calls_per_minute=10, max_calls=1)
    async with gateway_of(Engine(Role.PLAIN, held), api_keys=(limits,)) as gateway:
        first = asyncio.create_task(gateway.chat(KEY))
        running = await held.next()
        refused = await gateway.chat(KEY)
        await running.peer.send(as_json(ANSWER))
        assert (await first).status_code == 200
    assert refused.status_code == 429
    assert of_requests(refused.headers)[:2] == ("10", "9")
