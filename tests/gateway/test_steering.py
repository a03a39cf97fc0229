"""`--trust-endpoint-headers`: calls go where headers say, among engines of this gateway; else headers say nothing."""

import asyncio
from collections.abc import Collection, Iterable

import pytest

from pdgate.forwarders.retry import CHANCES
from pdgate.gateway.config.sections import AdmissionSection
from pdgate.gateway.engine_addresses import EngineAddresses
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.steering import Steering
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from tests.gateway.admission.test_waiting_calls import until_waiting
from tests.support.ext_proc import DESTINATION
from tests.support.fleet import PREFILLED, Engine, Held, as_json, gateway_of, says
from tests.support.scripted import D0, D1, P0
from tests.support.scripted import fleet as fleet_of
from tests.support.waiting import until

PREFILLER = "x-prefiller-host-port"


def addressed(engine: Engine) -> str:
    return engine.url.removeprefix("http://")


def fleet() -> tuple[Engine, ...]:
    """Two pairs."""
    return tuple(Engine(role) for role in (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE))


async def test_a_call_goes_to_the_engines_that_its_headers_name() -> None:
    first_p, second_p, first_d, second_d = engines = fleet()
    async with gateway_of(*engines, trust_endpoint_headers=True) as gateway:
        for _ in range(4):
            said = {DESTINATION: addressed(second_d), PREFILLER: addressed(first_p)}
            assert (await gateway.chat(said)).status_code == 200

        counts = [len(one.calls) for one in (first_p, second_p, first_d, second_d)]
        assert counts == [4, 0, 0, 4]
        # What was said is between the data plane and us.
        assert all(one.calls[0].header(DESTINATION.encode()) is None for one in (first_p, second_d))


async def test_without_a_prefiller_the_destination_has_the_whole_call() -> None:
    *others, chosen = engines = fleet()
    async with gateway_of(*engines, trust_endpoint_headers=True) as gateway:
        assert (await gateway.chat({DESTINATION: addressed(chosen)})).status_code == 200

        assert [len(one.calls) for one in others] == [0, 0, 0]
        assert len(chosen.calls) == 1


async def test_the_next_of_the_list_is_asked_when_the_first_fails() -> None:
    bad, good, other = (Engine(Role.PLAIN) for _ in range(3))
    bad.script = says(as_json({"error": {}}, b"500 Internal Server Error"))
    async with gateway_of(bad, good, other, trust_endpoint_headers=True) as gateway:
        listed = f"{addressed(bad)},{addressed(good)}"
        assert (await gateway.chat({DESTINATION: listed})).status_code == 200

        # It may have had a second chance, as an engine has that is not known to be at fault.
        assert bad.calls
        assert [len(one.calls) for one in (good, other)] == [1, 0]


@pytest.mark.parametrize("header", [DESTINATION, PREFILLER])
async def test_an_engine_that_is_not_of_this_gateway_is_503_and_nobody_is_asked(
    header: str,
) -> None:
    engines = fleet()
    async with gateway_of(*engines, trust_endpoint_headers=True) as gateway:
        said = {DESTINATION: addressed(engines[3]), header: "192.0.2.1:80"}
        answer = await gateway.chat(said)

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instance")
        assert header in answer.json()["error"]["message"]
        assert not any(one.calls for one in engines)
        too_long = await gateway.chat({DESTINATION: "10.0.0.1:80," * 1000})
        assert too_long.status_code == 400


async def test_headers_say_nothing_where_they_are_not_trusted() -> None:
    engine = Engine(Role.PLAIN)
    async with gateway_of(engine) as gateway:
        said = {DESTINATION: "192.0.2.1:80", PREFILLER: "192.0.2.1:80"}
        assert (await gateway.chat(said)).status_code == 200

        assert engine.calls[0].header(DESTINATION.encode()) is None
        assert engine.calls[0].header(PREFILLER.encode()) is None


async def test_a_reload_may_begin_to_trust_them() -> None:
    engines = [Engine(Role.PLAIN), Engine(Role.PLAIN)]
    async with gateway_of(*engines) as gateway:
        settings = gateway.reload.settings
        wanted = settings.model_copy(update={"trust_endpoint_headers": True})
        assert gateway.reload.take(wanted) == ["trust_endpoint_headers"]
        for _ in range(4):
            await gateway.chat({DESTINATION: addressed(engines[1])})

        assert [len(one.calls) for one in engines] == [0, 4]


async def test_an_engine_that_came_while_the_call_waited_is_not_chosen() -> None:
    """Where addresses lead is asked before the call's turn, and which engines there are when it has come."""
    engines = fleet_of(P0, D0)
    steered = await Steering(engines, EngineAddresses()).of(
        RequestHeaders([(DESTINATION.encode(), f"{D0.host}:{D0.port}".encode())])
    )
    assert steered is not None

    engines.put(D1)

    assert set(steered.state().failures) == {"p0", "d1"}


async def test_an_engine_that_left_while_the_call_waited_is_no_bug() -> None:
    engines = fleet_of(P0, D0, D1)
    named = ",".join(f"{one.host}:{one.port}" for one in (D0, D1))
    steered = await Steering(engines, EngineAddresses()).of(
        RequestHeaders([(DESTINATION.encode(), named.encode())])
    )
    assert steered is not None

    engines.remove("d0")

    assert dict(steered.state().failures) == {"p0": CHANCES, "d0": 1}


async def test_calls_whose_addresses_are_asked_for_do_not_have_one_place_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name may take seconds to resolve, and engines are reserved at once when a call's turn has come."""
    asked, named, resolved = [], EngineAddresses.named, asyncio.Event()

    async def slow(
        self: EngineAddresses, fleet: Iterable[Endpoint], texts: Collection[str]
    ) -> dict[str, list[str]]:
        asked.append(texts)
        await resolved.wait()
        return await named(self, fleet, texts)

    monkeypatch.setattr(EngineAddresses, "named", slow)
    reading = Held()
    prefill, decode = Engine(Role.PREFILL, reading), Engine(Role.DECODE)
    limits = AdmissionSection(prefill_concurrency=1)
    async with gateway_of(
        prefill, decode, trust_endpoint_headers=True, admission=limits
    ) as gateway:
        said = {DESTINATION: addressed(decode), PREFILLER: addressed(prefill)}
        calls = [asyncio.create_task(gateway.chat(said)) for _ in range(2)]
        await until(lambda: len(asked) == 2, "calls whose addresses are asked for")
        resolved.set()
        first = await reading.next()
        await until_waiting(gateway, 1)
        assert len(prefill.calls) == 1

        await first.peer.send(as_json(PREFILLED))
        await first.peer.close()
        await (await reading.next()).peer.send(as_json(PREFILLED))
        assert [(await call).status_code for call in calls] == [200, 200]
