"""Where /debug is off, whoever has the admin token is told of calls by the console's route."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import app
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, gateway_of


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("a-token-of-the-operators")
    return str(file)


async def explain(*args: str) -> Result:
    """On a thread, as the gateway that it asks serves in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["explain", *args])


@pytest.mark.parametrize("listener", [{}, {"admin_listen": "127.0.0.1:0"}])
async def test_the_admin_token_is_enough(token: str, listener: dict[str, Any]) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, admin_token_file=token, **listener) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        at = ["--gateway", gateway.admin_url if listener else str(gateway.http.base_url)]
        told = await explain("mine", *at, "--admin-token-file", token)
        without = await explain("mine", *at)
        unknown = await explain("other", *at, "--admin-token-file", token)

    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("call mine, model m: ok (200)")
    assert (without.exit_code, unknown.exit_code) == (2, 2)
    assert "asks for the admin token: --admin-token-file FILE" in without.stderr
    assert "knows no call 'other'" in unknown.stderr


async def test_where_neither_is_there_both_cures_are_named(token: str) -> None:
    async with gateway_of(Engine(Role.PLAIN), admin_token_file=token, console=False) as gateway:
        told = await explain(
            "mine", "--gateway", str(gateway.http.base_url), "--admin-token-file", token
        )

    assert told.exit_code == 2
    (line,) = told.stderr.splitlines()
    assert "--debug-routes" in line
    assert "--admin-token-file" in line
