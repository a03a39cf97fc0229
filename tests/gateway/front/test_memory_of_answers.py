"""What answers take of a gateway's memory: those that are not whole yet, and those that are not read."""

import asyncio

import pytest

from pdgate.gateway import memory_limit
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    PREFILLED,
    Engine,
    Gateway,
    as_json,
    ask,
    breaks_off,
    gateway_of,
    says,
)

MEGABYTE = 1 << 20
KEY = ApiKeyEntry(name="a", sha256=hash_of(b"secret"))


def answer_of(size: int) -> bytes:
    return as_json({**ANSWER, "padding": "x" * size})


async def counted(gateway: Gateway, how: str) -> float:
    return (await gateway.metrics())["pdgate_out_of_memory_total", how]


async def test_an_answer_for_which_there_is_no_memory_is_refused_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 2 * MEGABYTE)
    engine = Engine(Role.PLAIN, says(answer_of(4 * MEGABYTE)))
    async with gateway_of(engine, max_memory_bytes=1) as gateway:
        for attempt in range(3):
            answer = await gateway.chat()

            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "gateway_out_of_memory"
            assert await counted(gateway, "refused") == attempt + 1
        assert len(engine.calls) == 3
        engine.script = says(answer_of(MEGABYTE))
        # One after another: what each held was given back.
        for _ in range(5):
            assert (await gateway.chat()).status_code == 200
        # No engine was blamed.
        assert (await gateway.metrics())["pdgate_instance_up", "plain-0", "plain"] == 1


async def test_an_engines_reply_counts_no_longer_than_it_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the client leaves before it is whole."""
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 2 * MEGABYTE)
    half = answer_of(MEGABYTE + MEGABYTE // 2)[:-1000]
    engine = Engine(Role.PLAIN, says(half))
    async with (
        gateway_of(engine, max_memory_bytes=1) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        for _ in range(4):
            _, writer = await gateway.wire()
            writer.write(ask())
            calls = len(engine.calls)
            while len(engine.calls) == calls:
                await gateway.http.get("/health")
            writer.transport.abort()
        engine.script = says(answer_of(MEGABYTE))
        assert (await gateway.chat()).status_code == 200


async def test_a_prefill_reply_that_breaks_off_gives_back_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 2 * MEGABYTE)
    reply = as_json({**PREFILLED, "padding": "x" * (MEGABYTE + MEGABYTE // 2)})
    prefill = Engine(Role.PREFILL, breaks_off(reply[:-1000]))
    decode = Engine(Role.DECODE)
    async with gateway_of(prefill, decode, max_memory_bytes=1, max_attempts=1) as gateway:
        for _ in range(3):
            answer = await gateway.chat()

            assert answer.json()["error"]["code"] == "engine_failed"
        prefill.script = says(reply)
        assert (await gateway.chat()).status_code == 200
        assert await counted(gateway, "refused") == 0


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_slow_readers_of_large_answers_are_not_cut(keys: tuple[ApiKeyEntry, ...]) -> None:
    """Ten of 5 MB each, of which nothing is read until all are complete."""
    engine = Engine(Role.PLAIN, says(answer_of(5 * MEGABYTE)))
    request = ask(b"connection: close", b"authorization: Bearer secret")
    async with (
        gateway_of(engine, api_keys=keys) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        readers = []
        for _ in range(10):
            reader, writer = await gateway.wire()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request)
            readers.append(reader)
        while (await gateway.metrics())["pdgate_calls_in_flight",] or len(engine.calls) < 10:
            pass
        for reader in readers:
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            answer = await reader.read()

            assert answer.startswith(b"HTTP/1.1 200 ")
            assert len(answer) > 5 * MEGABYTE
        assert await counted(gateway, "cut") == 0
