"""Each stage of a call has its limit, and each model may have its own."""

import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.config.rules import timeouts_of, timeouts_of_models
from pdgate.gateway.config.settings import ModelEntry, Timeouts
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Held, gateway_of

SHORT, LONG = 0.05, 60.0


def test_the_kv_has_as_long_as_the_first_byte_unless_it_is_said() -> None:
    assert timeouts_of(Timeouts(first_byte_seconds=7)).kv_wait_seconds == 7
    assert timeouts_of(Timeouts(first_byte_seconds=7, kv_wait_seconds=3)).kv_wait_seconds == 3


def test_what_a_model_does_not_say_is_everybodys() -> None:
    settings = Settings(
        timeouts=Timeouts(prefill_seconds=5, idle_seconds=6),
        models=(ModelEntry(name="m", prefill_seconds=50),),
    )

    own = timeouts_of_models(settings)["m"]

    assert (own.prefill_seconds, own.idle_seconds) == (50, 6)


@pytest.mark.parametrize(
    ("role", "timeouts"),
    [
        (Role.PREFILL, Timeouts(prefill_seconds=SHORT)),
        (Role.DECODE, Timeouts(kv_wait_seconds=SHORT, first_byte_seconds=LONG)),
        (Role.PLAIN, Timeouts(kv_wait_seconds=LONG, first_byte_seconds=SHORT)),
    ],
)
async def test_who_takes_longer_than_its_stage_may_is_too_slow(
    role: Role, timeouts: Timeouts
) -> None:
    roles = (Role.PLAIN,) if role is Role.PLAIN else (Role.PREFILL, Role.DECODE)
    engines = [Engine(each, Held() if each is role else None) for each in roles]
    settings = {"timeouts": timeouts, "max_attempts": 1, "on_prefill_failure": "retry"}
    async with gateway_of(*engines, **settings) as gateway:
        assert (await gateway.chat()).status_code == 504


async def test_a_models_own_limit_goes_before_the_general_one() -> None:
    settings = {
        "timeouts": Timeouts(first_byte_seconds=LONG),
        "models": (ModelEntry(name="m", first_byte_seconds=SHORT),),
        "max_attempts": 1,
    }
    async with gateway_of(Engine(Role.PLAIN, Held()), **settings) as gateway:
        assert (await gateway.chat(model="m")).status_code == 504
