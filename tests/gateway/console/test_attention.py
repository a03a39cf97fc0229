"""Choices are explained while somebody watches, and a little longer."""

from pathlib import Path

import pytest

from pdgate.gateway.console.attention import LASTS_SECONDS, ConsoleAttention
from pdgate.protocols.instance import Role
from tests.gateway.console.watching import KNOWN, gateway_with_console, picture_of
from tests.support.fleet import Engine, Gateway


def test_it_begins_with_the_first_look_and_ends_some_time_after_the_last() -> None:
    now, said = [0.0], list[str]()
    attention = ConsoleAttention(
        lambda: said.append("begins"), lambda: said.append("ends"), lambda: now[0]
    )

    attention.look()
    attention.watched()
    now[0] = LASTS_SECONDS
    attention.watched()
    now[0] = 2 * LASTS_SECONDS
    attention.look()
    assert said == ["begins"]

    now[0] += 0.1
    attention.look()
    attention.look()
    assert said == ["begins", "ends"]
    attention.watched()
    assert said == ["begins", "ends", "begins"]


@pytest.mark.parametrize("debug_routes", [True, False])
async def test_a_choice_is_explained_where_somebody_watched_or_debugs(
    tmp_path: Path, debug_routes: bool
) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_with_console(tmp_path, *engines, debug_routes=debug_routes) as gateway:
        await gateway.chat({"x-request-id": "before"})
        await picture_of(gateway)
        await gateway.chat({"x-request-id": "watched"})

        assert await _roles(gateway, "before") == (["prefill", "decode"] if debug_routes else [])
        assert await _roles(gateway, "watched") == ["prefill", "decode"]


async def _roles(gateway: Gateway, call_id: str) -> list[str]:
    """Of which there are choices."""
    found = (await gateway.http.get(f"/admin/calls/{call_id}", headers=KNOWN)).json()
    return [choice["role"] for choice in found["choices"]]
