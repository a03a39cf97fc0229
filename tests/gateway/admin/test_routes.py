"""Thresholds change while the gateway runs, for who knows the token and for nobody else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.gateway.config.sections import DisaggregationSection
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, gateway_of

PATH = "/admin/disaggregation"
TOKEN = "correct-horse-battery-staple"
DEFAULTS = {"rule": "always", "uncached_tokens": 1000, "max_prefill_calls": 2}


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


@pytest.fixture
async def gateway(token_file: str) -> AsyncIterator[Gateway]:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, admin_token_file=token_file) as gateway:
        yield gateway


async def put(gateway: Gateway, body: Any) -> httpx2.Response:
    return await gateway.http.put(PATH, json=body, headers={"authorization": f"Bearer {TOKEN}"})


async def asked(gateway: Gateway) -> list[int]:
    """How many calls each engine has got."""
    return [len(engine.calls) for engine in gateway.engines]


async def test_without_a_token_file_there_is_no_such_route() -> None:
    async with gateway_of(Engine(Role.PREFILL)) as gateway:
        assert (await put(gateway, {})).status_code == 404
        assert (await gateway.http.get(PATH)).status_code == 404


@pytest.mark.parametrize(
    "said", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"]
)
async def test_who_does_not_know_the_token_learns_and_changes_nothing(
    gateway: Gateway, said: str
) -> None:
    headers = {"authorization": said} if said else {}

    for answer in (
        await gateway.http.get(PATH, headers=headers),
        await gateway.http.put(PATH, json={"rule": "never"}, headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert TOKEN not in answer.text

    await gateway.chat()
    assert await asked(gateway) == [1, 1]


async def test_what_is_in_force_can_be_read(gateway: Gateway) -> None:
    answer = await gateway.http.get(PATH, headers={"authorization": f"Bearer {TOKEN}"})

    assert (answer.status_code, answer.json()) == (200, DEFAULTS)


async def test_a_change_counts_from_the_next_call_on(gateway: Gateway) -> None:
    await gateway.chat()
    assert await asked(gateway) == [1, 1]

    answer = await put(gateway, {"rule": "never"})

    assert (answer.status_code, answer.json()) == (200, {**DEFAULTS, "rule": "never"})
    await gateway.chat()
    assert await asked(gateway) == [1, 2]


async def test_keys_that_are_left_out_stay_as_they_are(gateway: Gateway) -> None:
    await put(gateway, {"uncached_tokens": 7})

    said = (await put(gateway, {"rule": "auto"})).json()

    assert said == {**DEFAULTS, "rule": "auto", "uncached_tokens": 7}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"rule": "sometimes"}, "'rule'"),
        ({"uncached_tokens": -1}, "'uncached_tokens'"),
        ({"uncached_tokens": "10"}, "'uncached_tokens'"),
        ({"max_prefill_calls": 0}, "'max_prefill_calls'"),
        ({"uncached_token": 1}, "the nearest known one is 'uncached_tokens'"),
        ([], "must be a JSON object"),
        ("x" * (64 << 10), "shorter"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_named_and_changes_nothing(
    gateway: Gateway, body: Any, complaint: str
) -> None:
    answer = await put(gateway, body)

    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert (await gateway.http.get(PATH, headers=headers)).json() == DEFAULTS


async def test_each_decision_is_counted_with_its_reason(token_file: str) -> None:
    rule = DisaggregationSection(rule="uncached_tokens_above", uncached_tokens=10_000)
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, disaggregation=rule, admin_token_file=token_file) as gateway:
        await gateway.chat()
        await put(gateway, {"rule": "always"})
        await gateway.chat()
        await gateway.chat(max_tokens=1)

        counted = {
            key[1:]: value
            for key, value in (await gateway.metrics()).items()
            if key[0] == "pdgate_disaggregation_decisions_total" and value
        }

    assert counted == {
        ("local", "short prompt"): 1,
        ("split", "always asked for"): 1,
        ("prefill_only", "one token"): 1,
    }
