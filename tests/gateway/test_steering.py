"""`--trust-endpoint-headers`: calls go where headers say, among engines of this gateway; else headers say nothing."""

import pytest

from pdgate.protocols.instance import Role
from tests.support.ext_proc import DESTINATION
from tests.support.fleet import Engine, as_json, gateway_of, says

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
