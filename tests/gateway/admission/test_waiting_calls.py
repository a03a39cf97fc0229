"""Calls that wait, over real sockets and with both front ends."""

import asyncio
from collections.abc import Sequence

import httpx2
import pytest

from pdgate.gateway.config.sections import AdmissionSection, TargetsSection
from pdgate.gateway.policies import Policies
from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy
from tests.support.fleet import (
    ANSWER,
    PREFILLED,
    Engine,
    Gateway,
    Held,
    HeldCall,
    as_json,
    gateway_of,
)
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("front_end")

ONE_AT_DECODE = AdmissionSection(decode_concurrency=1)


def ask(gateway: Gateway, **headers: str) -> asyncio.Task[httpx2.Response]:
    return asyncio.create_task(
        gateway.chat(headers={name.replace("_", "-"): said for name, said in headers.items()})
    )


async def answer(call: HeldCall, body: object = ANSWER) -> None:
    await call.peer.send(as_json(body))
    await call.peer.close()


async def until_waiting(gateway: Gateway, calls: int) -> None:
    async def wait() -> bool:
        found = await gateway.metrics()
        return found.get(("pdgate_calls_waiting", "m"), 0) == calls

    await until(wait, f"{calls} calls that wait")


async def test_a_prefill_that_no_decode_engine_will_take_is_not_begun() -> None:
    decode = Held()
    prefill = Engine(Role.PREFILL)
    async with gateway_of(prefill, Engine(Role.DECODE, decode), admission=ONE_AT_DECODE) as gateway:
        first, second = ask(gateway), ask(gateway)
        held = await decode.next()
        await until_waiting(gateway, 1)
        assert len(prefill.calls) == 1

        await answer(held)
        await answer(await decode.next())

        assert {(await first).status_code, (await second).status_code} == {200}
        assert len(prefill.calls) == 2


async def test_the_next_prompt_is_read_as_soon_as_prefill_is_done_with_one() -> None:
    prefill, decode = Held(), Held()
    engines = Engine(Role.PREFILL, prefill), Engine(Role.DECODE, decode)
    async with gateway_of(*engines, admission=AdmissionSection(prefill_concurrency=1)) as gateway:
        calls = ask(gateway), ask(gateway)
        reading = await prefill.next()
        await until_waiting(gateway, 1)

        await answer(reading, PREFILLED)
        await answer(await prefill.next(), PREFILLED)

        await answer(await decode.next())
        await answer(await decode.next())
        assert [(await call).status_code for call in calls] == [200, 200]


async def test_calls_wait_for_a_target_that_is_set_until_prefill_has_read_what_it_has() -> None:
    """While no engine has shown how fast it is, 10,000 tokens count as a second."""
    prefill = Held()
    engines = Engine(Role.PREFILL, prefill), Engine(Role.DECODE)
    targets = TargetsSection(ttft_seconds=5)
    async with gateway_of(*engines, targets=targets) as gateway:
        long = [{"role": "user", "content": "word " * 12_000}]
        calls = [asyncio.create_task(gateway.chat(messages=long)) for _ in range(3)]
        reading = await prefill.next()
        await until_waiting(gateway, 2)

        for _ in range(2):
            await answer(reading, PREFILLED)
            reading = await prefill.next()
        await answer(reading, PREFILLED)

        assert [(await call).status_code for call in calls] == [200, 200, 200]


@pytest.mark.parametrize("protocol", ["plain", "vllm-kvt"])
async def test_an_engine_that_has_read_is_asked_again_though_its_whole_answer_is_not_there(
    protocol: str,
) -> None:
    """When it should have, as nothing else tells: a whole answer comes with its last token."""
    answers = Held()
    engines = [Engine(Role.PLAIN, answers)]
    if protocol != "plain":
        engines = [Engine(Role.PREFILL), Engine(Role.DECODE, answers)]
        for engine in engines:
            engine.entry = {"protocol": protocol, "kv": "127.0.0.1:9"}
    targets = TargetsSection(ttft_seconds=0.5)
    async with gateway_of(*engines, targets=targets) as gateway:
        long = [{"role": "user", "content": "word " * 1_200}]
        calls = [asyncio.create_task(gateway.chat(messages=long)) for _ in range(3)]

        for call in [await answers.next() for _ in calls]:
            await answer(call)

        assert [(await call).status_code for call in calls] == [200, 200, 200]


async def test_the_more_urgent_call_is_served_first() -> None:
    plain = Held()
    async with gateway_of(Engine(Role.PLAIN, plain), admission=ONE_AT_DECODE) as gateway:
        first = ask(gateway)
        held = await plain.next()
        later = ask(gateway, x_priority="7")
        await until_waiting(gateway, 1)
        sooner = ask(gateway, x_priority="0")
        await until_waiting(gateway, 2)

        await answer(held)
        await answer(await plain.next())
        done, _ = await asyncio.wait({later, sooner}, return_when=asyncio.FIRST_COMPLETED)

        assert done == {sooner}
        await answer(await plain.next())
        await first
        await later


async def test_a_full_line_is_a_429_that_says_when_to_come_again() -> None:
    plain = Held()
    settings = AdmissionSection(decode_concurrency=1, waiting=1)
    async with gateway_of(Engine(Role.PLAIN, plain), admission=settings) as gateway:
        first = ask(gateway)
        held = await plain.next()
        waiting = ask(gateway)
        await until_waiting(gateway, 1)

        refused = await gateway.chat()

        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "gateway_overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        counted = await gateway.metrics()
        assert counted["pdgate_calls_turned_away_total", "m", "full"] == 1
        await answer(held)
        await answer(await plain.next())
        await first
        await waiting


async def test_a_client_that_leaves_while_it_waits_makes_place() -> None:
    plain = Held()
    async with gateway_of(Engine(Role.PLAIN, plain), admission=ONE_AT_DECODE) as gateway:
        first = ask(gateway)
        held = await plain.next()
        leaves = ask(gateway)
        await until_waiting(gateway, 1)

        leaves.cancel()

        await until_waiting(gateway, 0)
        await answer(held)
        assert (await first).status_code == 200
        assert (await gateway.metrics())["pdgate_calls_total", "", "client_gone", "", ""] == 1


async def test_an_urgency_that_is_not_on_the_scale_is_a_400() -> None:
    async with gateway_of(Engine(Role.PLAIN), admission=ONE_AT_DECODE) as gateway:
        refused = await gateway.chat(headers={"x-priority": "urgent"})

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-priority"


async def test_a_call_for_a_model_that_nobody_serves_does_not_wait() -> None:
    plain = Held()
    async with gateway_of(Engine(Role.PLAIN, plain), admission=ONE_AT_DECODE) as gateway:
        first = ask(gateway)
        held = await plain.next()

        assert (await gateway.chat(model="other")).status_code == 404

        await answer(held)
        await first


async def test_engines_are_chosen_by_what_a_call_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy that weighs time knows how much of it is left."""
    waited = list[float]()

    class First(Policy):
        def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
            waited.append(call.waited_seconds)
            return endpoints[0]

    monkeypatch.setattr(Policies, "of", lambda *_: First())
    decode = Held()
    engines = Engine(Role.PREFILL), Engine(Role.PREFILL), Engine(Role.DECODE, decode)
    async with gateway_of(*engines, admission=AdmissionSection(decode_concurrency=2)) as gateway:
        calls = [ask(gateway), ask(gateway)]
        held = [await decode.next(), await decode.next()]
        calls.append(ask(gateway))
        await until_waiting(gateway, 1)
        await answer(held[0])
        await answer(held[1])
        await answer(await decode.next())

        assert [(await call).status_code for call in calls] == [200, 200, 200]

    assert waited[:2] == [0.0, 0.0]
    assert waited[2] > 0.0
