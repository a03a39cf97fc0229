"""What realtime sessions take of their keys' tokens."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from wsproto.events import AcceptConnection, CloseConnection, TextMessage

from pdgate.gateway.tenants.session_tokens import MOST_READ_BYTES, SessionTokens
from tests.gateway.control.controlled import Controlled, controlling, tell
from tests.gateway.realtime.site import PATH, SocketEngine
from tests.gateway.tenants.test_at_the_door import KEY, key, served, settled, total
from tests.support.fleet import Gateway
from tests.support.sockets import SocketPeer, dialled, refusal
from tests.support.waiting import until

BEARER = ("authorization", KEY["authorization"])
DONE = {
    "type": "transcription.done",
    "text": 'he said "usage"',
    "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
}
RESPONSE = {
    "type": "response.done",
    "response": {
        "output": [{"text": "x" * 5000}],
        "usage": {
            "total_tokens": 50,
            "input_tokens": 30,
            "output_tokens": 20,
            "input_token_details": {"text_tokens": 5, "cached_tokens": 25},
        },
    },
}
WITH_METADATA = {
    "type": "response.done",
    "response": {
        "usage": {"input_tokens": 7, "output_tokens": 1},
        "metadata": {"usage": "none", "x": '"usage": {"input_tokens": 0, "output_tokens": 0}'},
    },
    "event_id": '"usage"',
}
LONG = {
    "type": "response.done",
    "response": {
        "output": [{"text": "x" * 100_000}],
        "usage": {"input_tokens": 7, "output_tokens": 1},
    },
}
DELTA = {"type": "transcription.delta", "delta": "a"}

both_fronts = pytest.mark.usefixtures("front_end")


async def opened(gateway: Gateway, engine: SocketEngine) -> tuple[SocketPeer, SocketPeer]:
    """Client and engine of a session."""
    client = await dialled(gateway.port, f"{PATH}?model=m", BEARER)
    assert isinstance(await client.hear(), AcceptConnection)
    return client, await engine.sessions.get()


async def says(engine: SocketPeer, event: dict[str, Any]) -> str:
    """In two pieces."""
    said = json.dumps(event)
    half = len(said) // 2
    await engine.say(
        TextMessage(data=said[:half], message_finished=False), TextMessage(data=said[half:])
    )
    return said


@asynccontextmanager
async def after(
    events: Sequence[dict[str, Any]], folder: Path, limits: dict[str, int]
) -> AsyncIterator[tuple[Gateway, SocketPeer, SocketPeer]]:
    """A session of a key with these limits, whose client has heard these events of its engine."""
    engine = SocketEngine()
    async with served(engine, folder, key(**limits)) as gateway:
        client, there = await opened(gateway, engine)
        for event in events:
            said = await says(there, event)
            assert await client.message() == said
        yield gateway, client, there


async def is_over(client: SocketPeer, engine: SocketPeer) -> None:
    await client.say(CloseConnection(code=1000))
    await engine.farewell()
    client.abort()
    engine.closed.set()


@both_fronts
@pytest.mark.parametrize("limits", [{}, {"tokens_per_day": 1000}], ids=["no limits", "limits"])
@pytest.mark.parametrize(
    ("events", "taken"),
    [
        pytest.param([DELTA] * 4 + [DONE], (9, 0, 4), id="vLLM's"),
        pytest.param([RESPONSE, RESPONSE], (60, 50, 40), id="OpenAI's"),
        pytest.param([WITH_METADATA], (7, 0, 1), id="a client's own names"),
        pytest.param([LONG], (7, 0, 1), id="a long one"),
        pytest.param([{"type": "x", "usage": 3}, {"usage": None}], (0, 0, 0), id="no usage"),
        pytest.param([DELTA] * 3, (0, 0, 3), id="not said"),
        # Counted at once, as they are many; what is said of them then is not counted again.
        pytest.param(
            [DELTA] * 70 + [{"type": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 72}}],
            (1, 0, 72),
            id="said late",
        ),
    ],
)
async def test_what_a_session_takes_is_counted(
    tmp_path: Path,
    limits: dict[str, int],
    events: list[dict[str, Any]],
    taken: tuple[int, int, int],
) -> None:
    async with after(events, tmp_path, limits) as (gateway, client, there):
        await is_over(client, there)
        found = await settled(gateway, 1)
        assert tuple(found[name] for name in ("prompt", "cached", "generated")) == taken
        assert found["calls"] == 1


@both_fronts
@pytest.mark.parametrize(
    ("limits", "events", "code"),
    [
        ({"tokens_per_day": 12}, [DONE], "rate_limit_exceeded"),
        ({"budget_tokens": 12}, [DONE], "insufficient_quota"),
        ({"generated_tokens_per_day": 63}, [DELTA] * 64, "rate_limit_exceeded"),
    ],
)
async def test_a_session_ends_with_its_keys_tokens(
    tmp_path: Path, limits: dict[str, int], events: list[dict[str, Any]], code: str
) -> None:
    async with after(events, tmp_path, limits) as (gateway, client, there):
        assert json.loads(await client.message())["error"]["code"] == code
        assert (await client.farewell()).code == 1008
        client.abort()
        there.closed.set()
        await until(lambda: gateway.drain._calls() == 0, "the session's end")
        metrics = await gateway.metrics()
        assert metrics["pdgate_realtime_sessions_ended_total", "out_of_tokens"] == 1
        assert (await total(gateway))["calls"] == 1

        status, said = await refusal(await dialled(gateway.port, f"{PATH}?model=m", BEARER))
        assert status == 429
        assert json.loads(said)["error"]["code"] == code


async def test_a_session_holds_nothing_once_it_is_over(tmp_path: Path) -> None:
    engine = SocketEngine()
    async with served(engine, tmp_path, key(tokens_per_day=2)) as gateway:
        for _ in range(3):
            client, there = await opened(gateway, engine)
            # One at a time: it holds what is left.
            assert (await refusal(await dialled(gateway.port, PATH, BEARER)))[0] == 429
            await is_over(client, there)
            await until(lambda: gateway.drain._calls() == 0, "the session's end")


async def test_a_session_ends_though_its_tokens_cannot_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug there keeps no place of its key, and its record is over."""

    def trips(_: SessionTokens) -> None:
        raise ZeroDivisionError("a bug")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(SessionTokens, "over", trips)
    engine = SocketEngine()
    async with served(engine, tmp_path, key(max_calls=1), call_log=True) as gateway:
        for _ in range(2):
            client, there = await opened(gateway, engine)
            await is_over(client, there)
            await until(lambda: gateway.drain._calls() == 0, "the session's end")
        assert (await gateway.metrics())["pdgate_realtime_sessions_ended_total", "closed"] == 2
    assert "a bug" in caplog.text
    assert caplog.text.count('"ended_by": "closed"') == 2


async def waits(gateway: Gateway) -> bool:
    found = await gateway.metrics()
    return any(found[name] for name in found if name[0] == "pdgate_calls_held")


class ControlledSockets(SocketEngine, Controlled):
    """Takes sessions, and orders."""


async def test_a_session_waits_while_engines_are_held(tmp_path: Path) -> None:
    engine = ControlledSockets()
    async with controlling(tmp_path, engine) as gateway:
        assert (await tell(gateway, "/pause"))[0] == 200
        client = await dialled(gateway.port, f"{PATH}?model=m")
        hears = asyncio.create_task(client.hear())
        await until(lambda: waits(gateway), "a session that waits")
        assert not hears.done()
        assert (await tell(gateway, "/resume"))[0] == 200
        assert isinstance(await hears, AcceptConnection)
        await is_over(client, await engine.sessions.get())


def test_what_is_held_of_a_message_is_weighed() -> None:
    weight = 0

    def weigh(more: int) -> None:
        nonlocal weight
        weight += more

    tokens = SessionTokens(Mock(), Mock(), weigh)
    for _ in range(10):
        tokens.hear(b"x" * (MOST_READ_BYTES // 4))
        assert 0 < weight <= MOST_READ_BYTES
    tokens._let_go()
    assert weight == 0
