"""Realtime sessions pass between a client and a plain engine, over our own connections and another server's."""

import asyncio
import json

import pytest
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, TextMessage

from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.realtime import relay
from pdgate.gateway.sockets import wire
from pdgate.protocols.instance import Role
from tests.gateway.realtime.site import PATH, SocketEngine, key_of, open_session
from tests.support import fleet
from tests.support.fleet import Engine, engine_error, gateway_of, says
from tests.support.raw_server import Peer
from tests.support.sockets import dialled, refusal
from tests.support.waiting import until

both_fronts = pytest.mark.usefixtures("front_end")


@both_fronts
async def test_messages_and_goodbyes_pass_both_ways() -> None:
    async with open_session() as (gateway, client, engine):
        await client.say(TextMessage(data="größer"), BytesMessage(data=b"\0\xff" * 300))
        assert [await engine.message(), await engine.message()] == ["größer", b"\0\xff" * 300]
        await engine.say(TextMessage(data="a", message_finished=False), TextMessage(data="b"))
        assert await client.message() == "ab"
        assert (await gateway.metrics())[("pdgate_realtime_sessions",)] == 1
        await client.say(CloseConnection(code=4001, reason="enough"))
        heard = await engine.farewell()
        assert (heard.code, heard.reason) == (4001, "enough")
        assert (await client.farewell()).code == 4001
        await until(lambda: gateway.drain._calls() == 0, "the session's end")
        found = await gateway.metrics()
        assert found[("pdgate_realtime_sessions_ended_total", "closed")] == 1
        assert found[("pdgate_realtime_bytes_total", "client")] == 608
        assert found[("pdgate_realtime_bytes_total", "engine")] == 2


async def test_an_engines_goodbye_is_the_clients() -> None:
    async with open_session() as (_, client, engine):
        await engine.say(TextMessage(data="last"), CloseConnection(code=4000, reason="over"))
        assert await client.message() == "last"
        heard = await client.farewell()
        assert (heard.code, heard.reason) == (4000, "over")


@both_fronts
async def test_pings_pass_and_are_answered() -> None:
    async with open_session() as (_, client, engine):
        await engine.say(Ping(payload=b"there?"))
        if fleet.HTTP is HotProtocol:
            heard = await client.hear()
            assert heard == Ping(payload=b"there?")
            await client.say(heard.response())
        assert await engine.hear() == Pong(payload=b"there?")


@both_fronts
async def test_an_engine_that_breaks_off_is_an_error_and_1011() -> None:
    async with open_session() as (gateway, client, engine):
        engine.abort()
        said = await client.message()
        assert json.loads(said)["error"]["code"] == "engine_failed"
        assert (await client.farewell()).code == 1011
        await until(lambda: gateway.drain._calls() == 0, "the session's end")


@both_fronts
async def test_a_client_that_breaks_off_ends_the_engines_side() -> None:
    async with open_session() as (gateway, client, engine):
        client.abort()
        # What uvicorn says of such a client is that it gave no code.
        assert (await engine.farewell()).code in (1001, 1005)
        await until(lambda: gateway.drain._calls() == 0, "the session's end")
        assert (await gateway.metrics())[("pdgate_realtime_sessions",)] == 0


async def test_a_message_without_end_ends_the_session() -> None:
    async with open_session(max_body_bytes=1000) as (_, client, engine):
        for _ in range(11):
            await client.say(TextMessage(data="x" * 100, message_finished=False))
        await client.say(TextMessage(data="x"))
        assert json.loads(await client.message())["error"]["code"] == "request_too_large"
        assert (await client.farewell()).code == 1009
        assert (await engine.farewell()).code == 1001


async def test_nothing_but_empty_pieces_ends_a_session() -> None:
    async with open_session() as (_, client, engine):
        await client.say(*[TextMessage(data="", message_finished=False)] * (relay.MOST_EMPTY + 1))
        assert (await client.farewell()).code == 1008
        assert (await engine.farewell()).code == 1001


async def test_silence_ends_a_session() -> None:
    async with open_session(timeouts={"session_idle_seconds": 0.01}) as (_, client, engine):
        heard = await client.farewell()
        assert heard.code == 1001
        assert "nothing was said" in (heard.reason or "")
        assert (await engine.farewell()).code == 1001


@both_fronts
async def test_the_end_of_a_drain_is_said_to_sessions() -> None:
    async with open_session(drain={"grace_seconds": 0.3}) as (gateway, client, engine):
        finished = asyncio.Event()
        gateway.drain.finish = finished.set
        gateway.drain.begin()
        status, _ = await refusal(await dialled(gateway.port, PATH))
        assert status == 503
        await client.say(TextMessage(data="still there"))
        assert await engine.message() == "still there"
        heard = await client.farewell()
        assert (heard.code, heard.reason) == (1001, "the gateway is shutting down")
        assert (await engine.farewell()).code == 1001
        await finished.wait()


@both_fronts
async def test_a_key_may_come_as_a_subprotocol_and_holds_its_place() -> None:
    engine = SocketEngine()
    async with gateway_of(engine, api_keys=(key_of("k", max_calls=1),)) as gateway:
        assert (await refusal(await dialled(gateway.port, PATH)))[0] == 401
        offered = ("realtime", "openai-insecure-api-key.k", "openai-beta.realtime-v1")
        first = await dialled(gateway.port, PATH, subprotocols=offered)
        accepted = await first.hear()
        assert isinstance(accepted, AcceptConnection)
        assert accepted.subprotocol == "realtime"
        there = await engine.sessions.get()
        sent = engine.calls[0]
        assert sent.header(b"authorization") is None
        assert sent.header(b"sec-websocket-protocol") == b"realtime, openai-beta.realtime-v1"
        bearer = ("authorization", "Bearer k")
        assert (await refusal(await dialled(gateway.port, PATH, bearer)))[0] == 429
        await first.say(CloseConnection(code=1000))
        await there.farewell()
        there.closed.set()
        await until(lambda: gateway.drain._calls() == 0, "the session's end")
        again = await dialled(gateway.port, PATH, bearer)
        assert isinstance(await again.hear(), AcceptConnection)
        again.abort()
        (await engine.sessions.get()).closed.set()


SECOND_MODELS = (
    '{"type": "session.update", "model": "other"}',
    '{"type": "session.update", "session": {"mod\\u0065l": "other"}}',
    '{"type":"session.update","model":"m","session":{"audio":{"transcription":{"model":"other"}}}}',
)


async def test_a_key_for_a_model_reaches_no_other() -> None:
    engine = SocketEngine("m", "other")
    bearer = ("authorization", "Bearer k")
    good = '{"type": "session.update", "model": "m"}'
    async with gateway_of(engine, api_keys=(key_of("k", models=("m",)),)) as gateway:
        for query in ("?model=other", "", "?model=m&model=other"):
            status, _ = await refusal(await dialled(gateway.port, PATH + query, bearer))
            assert status in (400, 403)
        for said in SECOND_MODELS:
            client = await dialled(gateway.port, f"{PATH}?model=m", bearer)
            assert isinstance(await client.hear(), AcceptConnection)
            there = await engine.sessions.get()
            await client.say(TextMessage(data=good[:9], message_finished=False))
            await client.say(TextMessage(data=good[9:]), TextMessage(data=said))
            assert await there.message() == good
            assert json.loads(await client.message())["error"]["code"] == "forbidden"
            assert (await client.farewell()).code == 1008
            assert isinstance(await there.hear(), CloseConnection)
            there.closed.set()


async def test_engines_know_no_aliases() -> None:
    models = [{"name": "m", "aliases": ["gpt-realtime"]}]
    engine = SocketEngine()
    async with gateway_of(engine, models=models) as gateway:
        client = await dialled(gateway.port, f"{PATH}?model=gpt-realtime")
        assert isinstance(await client.hear(), AcceptConnection)
        there = await engine.sessions.get()
        assert engine.calls[0].line == b"GET /v1/realtime?model=m HTTP/1.1"
        await client.say(TextMessage(data='{"type":"session.update","model":"gpt-realtime"}'))
        assert json.loads(await there.message()) == {"type": "session.update", "model": "m"}
        long = json.dumps({"type": "input_audio_buffer.append", "audio": "ö" * 100_000})
        await client.say(TextMessage(data=long))
        assert await there.message() == long
        client.abort()
        there.closed.set()


@both_fronts
async def test_what_an_engine_answers_instead_is_the_clients() -> None:
    engine = Engine(Role.PLAIN, says(engine_error(b"404 Not Found", "no such route")))
    async with gateway_of(engine) as gateway:
        status, body = await refusal(await dialled(gateway.port, PATH))
        assert (status, b"no such route" in body) == (404, True)


@both_fronts
async def test_an_engine_that_refuses_a_session_names_no_address_and_repeats_nothing() -> None:
    """As with calls: what an engine says of a peer, or repeats, is the client's without that."""

    async def refuses(peer: Peer) -> None:
        said = f"no link to {engine.url}, 'input': {{'kv_transfer_params': 1}}"
        await peer.send(engine_error(b"400 Bad Request", said))
        await peer.close()

    engine = Engine(Role.PLAIN, refuses)
    async with gateway_of(engine) as gateway:
        status, body = await refusal(await dialled(gateway.port, PATH))
        assert status == 400
        assert b"no link to [engine], 'input': ..." in body


async def test_another_engine_is_asked_where_one_fails() -> None:
    broken, engine = Engine(Role.PLAIN, says(b"HTTP/1.1 200 OK\r\n\r\n")), SocketEngine()
    async with gateway_of(broken, engine) as gateway:
        for _ in range(2):
            client = await dialled(gateway.port, PATH)
            assert isinstance(await client.hear(), AcceptConnection)
            client.abort()
            (await engine.sessions.get()).closed.set()


async def test_a_fleet_without_a_plain_engine_has_no_sessions() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        assert (await refusal(await dialled(gateway.port, PATH)))[0] == 501


async def test_pages_open_sessions_only_where_they_may_call() -> None:
    engine = SocketEngine()
    async with gateway_of(engine, cors_origins="https://good.example") as gateway:
        evil = await dialled(gateway.port, PATH, ("origin", "https://evil.example"))
        assert (await refusal(evil))[0] == 403
        good = await dialled(gateway.port, PATH, ("origin", "https://good.example"))
        assert isinstance(await good.hear(), AcceptConnection)
        good.abort()
        (await engine.sessions.get()).closed.set()


async def test_a_plain_request_is_told_to_ask_for_an_upgrade() -> None:
    async with gateway_of(SocketEngine()) as gateway:
        answer = await gateway.http.get(PATH)
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


@both_fronts
async def test_a_client_that_never_reads_holds_the_engine_up_and_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "STALLED_SECONDS", 0.5)
    monkeypatch.setattr(wire, "CLOSE_SECONDS", 0.1)
    async with open_session() as (gateway, _, engine):
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await engine.say(BytesMessage(data=b"x" * 65536))
                sent += 65536

        flooding = asyncio.create_task(flood())
        try:
            await until(lambda: gateway.drain._calls() == 0, "the session's end")
        finally:
            flooding.cancel()
            await asyncio.wait([flooding])
        # Sockets hold some MB; endless is more.
        assert sent < 64 << 20
        assert (await gateway.metrics())[("pdgate_realtime_sessions_ended_total", "stalled")] == 1
