"""Each stage of a call has its limit, and each model may have its own."""

import asyncio
from dataclasses import astuple
from typing import Any

import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.config.rules import timeouts_of, timeouts_of_models
from pdgate.gateway.config.sections import ModelEntry, TimeoutsSection
from pdgate.gateway.upstream.settings import UpstreamSettings
from pdgate.protocols.instance import Role
from tests.support.fleet import STREAM_HEAD, Engine, Held, gateway_of
from tests.support.raw_server import chunk

SHORT, LONG = 0.05, 60.0
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'


def test_what_a_gateway_gives_is_declared_with_its_settings_alone() -> None:
    """Two defaults once disagreed: 300 and 600 seconds for prefill, 120 and 300 between pieces."""
    given = timeouts_of(Settings().timeouts)

    assert astuple(given) == (5.0, 600.0, 600.0, 600.0, 300.0, None)
    assert set(astuple(UpstreamSettings().timeouts)) == {None}


def test_the_kv_has_as_long_as_the_first_byte_unless_it_is_said() -> None:
    assert timeouts_of(TimeoutsSection(first_byte_seconds=7)).kv_wait_seconds == 7
    assert (
        timeouts_of(TimeoutsSection(first_byte_seconds=7, kv_wait_seconds=3)).kv_wait_seconds == 3
    )


def test_what_a_model_does_not_say_is_everybodys() -> None:
    settings = Settings(
        timeouts=TimeoutsSection(prefill_seconds=5, idle_seconds=6),
        models=(ModelEntry(name="m", prefill_seconds=50),),
    )

    own = timeouts_of_models(settings)["m"]

    assert (own.prefill_seconds, own.idle_seconds) == (50, 6)


@pytest.mark.parametrize(
    ("role", "timeouts"),
    [
        (Role.PREFILL, TimeoutsSection(prefill_seconds=SHORT)),
        (Role.DECODE, TimeoutsSection(kv_wait_seconds=SHORT, first_byte_seconds=LONG)),
        (Role.PLAIN, TimeoutsSection(kv_wait_seconds=LONG, first_byte_seconds=SHORT)),
    ],
)
async def test_who_takes_longer_than_its_stage_may_is_too_slow(
    role: Role, timeouts: TimeoutsSection
) -> None:
    roles = (Role.PLAIN,) if role is Role.PLAIN else (Role.PREFILL, Role.DECODE)
    engines = [Engine(each, Held() if each is role else None) for each in roles]
    settings = {"timeouts": timeouts, "max_attempts": 1, "on_prefill_failure": "retry"}
    async with gateway_of(*engines, **settings) as gateway:
        assert (await gateway.chat()).status_code == 504


@pytest.mark.parametrize("own", [False, True])
async def test_a_call_that_takes_too_long_in_all_is_ended(own: bool) -> None:
    settings: dict[str, Any] = {"timeouts": TimeoutsSection(total_seconds=LONG if own else SHORT)}
    if own:
        settings["models"] = (ModelEntry(name="m", total_seconds=SHORT),)
    async with gateway_of(Engine(Role.PLAIN, Held()), **settings) as gateway:
        answer = await gateway.chat(model="m")

        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "call_timeout")
        assert (await gateway.metrics())["pdgate_calls_in_flight",] == 0


async def test_a_stream_that_takes_too_long_in_all_ends_with_an_error_event() -> None:
    plain = Held()
    timeouts = TimeoutsSection(total_seconds=2.0)
    async with gateway_of(Engine(Role.PLAIN, plain), timeouts=timeouts) as gateway:
        asking = asyncio.create_task(gateway.chat(stream=True))
        call = await plain.next()
        await call.peer.send(STREAM_HEAD + chunk(EVENT))

        said = (await asking).content

        assert said.startswith(EVENT)
        assert b'"code":"call_timeout"' in said
        await call.left


async def test_a_models_own_limit_goes_before_the_general_one() -> None:
    settings = {
        "timeouts": TimeoutsSection(first_byte_seconds=LONG),
        "models": (ModelEntry(name="m", first_byte_seconds=SHORT),),
        "max_attempts": 1,
    }
    async with gateway_of(Engine(Role.PLAIN, Held()), **settings) as gateway:
        assert (await gateway.chat(model="m")).status_code == 504
