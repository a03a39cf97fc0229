"""A running call of low urgency gives way to one that waits, over real sockets; how its answer goes on with both
front ends."""

import asyncio
import json
from typing import Any

import httpx2
import pytest

from pdgate.gateway.config.sections import AdmissionSection
from pdgate.protocols import sse
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    LAST_CHUNK,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    HeldCall,
    as_json,
    gateway_of,
)
from tests.support.heard import heard
from tests.support.raw_server import chunk
from tests.support.waiting import until

ONE = AdmissionSection(decode_concurrency=1, give_way=1)
LOW = {"x-priority": "7"}
COUNTED = {"stream_options": {"include_usage": True}}


def said(text: str, *tokens: int, finish: str | None = None, **more: Any) -> bytes:
    delta = {"content": text} | ({"role": "assistant"} if not tokens else {})
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": tokens}
    return _event("chatcmpl-1", {"choices": [choice], **more})


def rest(text: str, *tokens: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "token_ids": tokens}
    return _event("cmpl-2", {"choices": [choice]})


def usage(prompt: int, completion: int) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
    return _event("cmpl-2", {"choices": [], "usage": counted})


def _event(id: str, fields: dict[str, Any]) -> bytes:
    return sse.event({"id": id, "object": "chunk", "created": 1, "model": "m", **fields})


OPENING = said("", prompt_token_ids=[1, 2])


def ask(gateway: Gateway, headers: dict[str, str], **fields: Any) -> asyncio.Task[httpx2.Response]:
    return asyncio.create_task(gateway.chat(headers, **fields))


async def begins(call: HeldCall, *events: bytes) -> None:
    await call.peer.send(STREAM_HEAD, *map(chunk, events))


async def goes_on(call: HeldCall) -> None:
    """As the engine that says the rest of "abcd"."""
    await begins(call, rest("c", 5), rest("d", 6, finish="stop"), usage(4, 2), sse.DONE)
    await call.peer.send(LAST_CHUNK)
    await call.peer.close()


async def answers(call: HeldCall, text: str = "urgent") -> None:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    await call.peer.send(as_json({"id": "chatcmpl-9", "choices": [choice]}))
    await call.peer.close()


async def ends(call: HeldCall, choices: int = 1) -> None:
    """As it was asked: of those that may give way a stream is asked."""
    if "stream" in body_of(call):
        await begins(call, OPENING, said("x", 3, finish="stop"), usage(2, 1), sse.DONE)
        await call.peer.send(LAST_CHUNK)
    else:
        some = [
            {"index": n, "message": {"content": "x"}, "finish_reason": "stop"}
            for n in range(choices)
        ]
        await call.peer.send(as_json({"choices": some}))
    await call.peer.close()


async def gave_way(gateway: Gateway) -> float:
    found = await gateway.metrics()
    return sum(value for key, value in found.items() if key[0] == "pdgate_calls_gave_way_total")


async def until_waiting(gateway: Gateway, calls: int) -> None:
    async def wait() -> bool:
        found = await gateway.metrics()
        return found.get(("pdgate_calls_waiting", "m"), 0) == calls

    await until(wait, f"{calls} calls that wait")


def body_of(call: HeldCall) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.peer.request.body)
    return found


@pytest.mark.usefixtures("front_end")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_running_call_gives_way_and_both_answers_are_whole(stream: bool) -> None:
    held = Held()
    plain = Engine(Role.PLAIN, held)
    asked = {"stream": True, **COUNTED} if stream else {}
    async with gateway_of(plain, admission=ONE, debug_routes=True, debug_headers=True) as gateway:
        slow = ask(gateway, {**LOW, "x-request-id": "slow"}, max_tokens=10, **asked)
        running = await held.next()
        assert body_of(running)["stream"] is True
        await begins(running, OPENING, said("a", 3), said("b", 4))
        await until(lambda: len(plain.calls) == 1, "the call to run")
        urgent = ask(gateway, {"x-request-id": "urgent"})
        first = await held.next()
        await running.left
        assert body_of(first)["messages"][0]["content"] == "hi"
        assert not slow.done()
        await until_waiting(gateway, 1)

        await answers(first)
        answer = await urgent
        again = await held.next()
        body = body_of(again)
        await goes_on(again)
        whole = await slow
        low, high = [
            (await gateway.http.get(f"/debug/calls/{name}")).json() for name in ("slow", "urgent")
        ]
        metrics = await gateway.metrics()

    assert answer.json()["choices"][0]["message"]["content"] == "urgent"
    assert answer.headers["x-pd-made-way"] == "1"
    assert whole.status_code == 200
    began_anew = "messages" in body
    if stream:
        found = heard(whole.content)
        assert (found.text, found.dones, len(found.heads)) == ("abcd", 1, 1)
        counted = found.usages[-1]
        assert not began_anew
    else:
        one = whole.json()
        assert one["object"] == "chat.completion"
        assert whole.headers["x-pd-path"] == "gave-way"
        choice = one["choices"][0]
        assert (choice["message"], choice["finish_reason"]) == (
            {"role": "assistant", "content": "abcd"},
            "stop",
        )
        counted = one["usage"]
        assert "token_ids" not in whole.text
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (2, 4)
    assert (body["prompt"], body["max_tokens"]) == ([1, 2, 3, 4], 8)
    assert low["tokens"] == {"prompt": 2, "generated": 4, "cached": None}
    assert (len(low["gave_way_ms"]), low["resumed"], low["made_way"]) == (1, 0, 0)
    assert (low["api"], high["made_way"], high["gave_way_ms"]) == ("/v1/chat/completions", 1, [])
    assert metrics["pdgate_calls_gave_way_total", "m", "answering"] == 1
    # It is no failure of the engine.
    assert ("pdgate_broken_answers_total", "plain", "resumed") not in metrics


@pytest.mark.usefixtures("front_end")
async def test_a_call_that_is_still_being_read_is_asked_anew() -> None:
    reading, decode = Held(), Held()
    engines = Engine(Role.PREFILL, reading), Engine(Role.DECODE, decode)
    admission = AdmissionSection(prefill_concurrency=1, give_way=1)
    async with gateway_of(*engines, admission=admission) as gateway:
        slow = ask(gateway, LOW)
        read = await reading.next()
        urgent = ask(gateway, {})
        first = await reading.next()
        await read.left

        await first.peer.send(as_json(PREFILLED))
        await first.peer.close()
        await answers(await decode.next())
        again = await reading.next()
        await again.peer.send(as_json(PREFILLED))
        await again.peer.close()
        answering = await decode.next()
        await begins(answering, OPENING, said("x", 3, finish="stop"), usage(2, 1), sse.DONE)
        await answering.peer.send(LAST_CHUNK)
        assert (await urgent).status_code == 200
        assert (await slow).json()["choices"][0]["message"]["content"] == "x"
        metrics = await gateway.metrics()

    assert metrics["pdgate_calls_gave_way_total", "m", "reading"] == 1


async def test_it_gives_way_as_often_as_it_may_and_then_stays() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), admission=ONE) as gateway:
        slow = ask(gateway, LOW, stream=True)
        await begins(await held.next(), OPENING, said("a", 3), said("b", 4))
        first = ask(gateway, {})
        await answers(await held.next())
        await first
        again = await held.next()
        second = ask(gateway, {"x-priority": "0"})
        await until_waiting(gateway, 1)
        await goes_on(again)

        assert heard((await slow).content).text == "abcd"
        await answers(await held.next())
        assert (await second).status_code == 200
        assert await gave_way(gateway) == 1


@pytest.mark.parametrize(
    ("limits", "low", "urgent", "fields"),
    [
        (AdmissionSection(decode_concurrency=1), "7", "0", {}),
        (ONE, "3", "0", {}),
        (ONE, "6", "6", {}),
        (ONE, "7", "0", {"n": 2}),
        (ONE, "7", "0", {"logprobs": True}),
        (ONE, "7", "0", {"tools": [{"type": "function"}]}),
    ],
    ids=["off", "ordinary", "equal", "choices", "logprobs", "tools"],
)
async def test_what_does_not_give_way_runs_to_its_end(
    limits: AdmissionSection, low: str, urgent: str, fields: dict[str, Any]
) -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), admission=limits) as gateway:
        running = ask(gateway, {"x-priority": low}, **fields)
        call = await held.next()
        waits = ask(gateway, {"x-priority": urgent})
        await until_waiting(gateway, 1)
        # As often as a worker looks, and another time.
        await asyncio.sleep(0.3)
        assert not call.left.done()
        await ends(call, fields.get("n", 1))

        assert (await running).status_code == 200
        await ends(await held.next())
        assert (await waits).status_code == 200


async def test_it_goes_on_elsewhere_when_its_engine_is_gone_meanwhile() -> None:
    held, other = Held(), Held()
    mine, spare = Engine(Role.PLAIN, held), Engine(Role.PLAIN, other)
    limits = AdmissionSection(decode_concurrency=1, give_way=2)
    async with gateway_of(mine, spare, admission=limits) as gateway:
        slow = [ask(gateway, LOW, stream=stream) for stream in (True, False)]
        for call in (await held.next(), await other.next()):
            await begins(call, OPENING, said("a", 3), said("b", 4))
        urgent = [ask(gateway, {}), ask(gateway, {})]
        first = [await held.next(), await other.next()]
        mine.refuse()
        await first[0].peer.close()
        await answers(first[1])
        # The one whose engine broke is asked for again at the other engine, before those that gave way.
        for _ in range(3):
            call = await other.next()
            if "prompt" in body_of(call):
                await goes_on(call)
            else:
                await answers(call)

        assert [(await one).status_code for one in urgent] == [200, 200]
        assert heard((await slow[0]).content).text == "abcd"
        assert (await slow[1]).json()["choices"][0]["message"]["content"] == "abcd"


async def test_an_engine_that_dies_after_a_call_came_back_costs_no_token() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), admission=ONE, max_attempts=2) as gateway:
        slow = ask(gateway, LOW)
        await begins(await held.next(), OPENING, said("a", 3), said("b", 4))
        urgent = ask(gateway, {})
        await answers(await held.next())
        await urgent
        await (await held.next()).peer.close()
        await goes_on(await held.next())

        assert (await slow).json()["choices"][0]["message"]["content"] == "abcd"


@pytest.mark.usefixtures("front_end")
async def test_a_client_that_leaves_while_its_call_waits_leaves_nothing_behind() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), admission=ONE) as gateway:
        slow = ask(gateway, LOW)
        await begins(await held.next(), OPENING, said("a", 3))
        urgent = ask(gateway, {})
        first = await held.next()
        await until_waiting(gateway, 1)
        slow.cancel()
        await until_waiting(gateway, 0)
        await answers(first)
        await urgent
        after = ask(gateway, {})
        await answers(await held.next())

        assert (await after).status_code == 200


async def test_a_call_that_gave_way_is_in_nobodys_way_and_is_not_turned_away() -> None:
    held = Held()
    limits = AdmissionSection(decode_concurrency=1, give_way=1, waiting=1, wait_seconds=0.1)
    async with gateway_of(Engine(Role.PLAIN, held), admission=limits) as gateway:
        slow = ask(gateway, LOW)
        await begins(await held.next(), OPENING, said("a", 3), said("b", 4))
        urgent = ask(gateway, {})
        first = await held.next()
        await until_waiting(gateway, 1)
        # The line is as long as it may be, and for longer than one may wait.
        late = ask(gateway, {})
        assert (await late).status_code == 429
        await answers(first)
        await urgent
        await goes_on(await held.next())

        assert (await slow).json()["choices"][0]["message"]["content"] == "abcd"


async def test_the_time_that_a_call_may_take_goes_on_while_it_waits() -> None:
    held = Held()
    timeouts = {"total_seconds": 1.0}
    async with gateway_of(Engine(Role.PLAIN, held), admission=ONE, timeouts=timeouts) as gateway:
        slow = ask(gateway, LOW)
        await begins(await held.next(), OPENING, said("a", 3))
        urgent = ask(gateway, {})
        await held.next()

        assert (await slow).json()["error"]["code"] == "call_timeout"
        assert (await urgent).status_code == 504
