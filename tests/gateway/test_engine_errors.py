"""What an engine says is wrong reaches the client; what goes wrong in an engine, no client."""

import json
from itertools import product

import pytest
from openai import APIError, AsyncOpenAI

from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    Gateway,
    as_json,
    breaks_off,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Peer, Script, chunk, reply

pytestmark = pytest.mark.usefixtures("front_end")

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
SECRETS = ("127.0.0.1", "localhost", "prefill-0", "decode-0", "prefill-1", "decode-1", "192.0.2.7")


def nothing_leaks(gateway: Gateway, text: str) -> bool:
    ports = [engine.url.rpartition(":")[2] for engine in gateway.engines]
    return not [secret for secret in (*SECRETS, *ports) if secret in text]


async def test_what_an_engine_rejects_the_client_hears_word_for_word() -> None:
    said = b'{ "error": {"message" : "max_tokens too large", "zz": 1.0}}'
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    good = engines[0].script
    headers = b"content-type: application/json", b"retry-after: 7", b"server: 127.0.0.1"
    async with gateway_of(*engines) as gateway:
        for guilty, status in product(
            engines, (b"400 Bad Request", b"404 Not Found", b"429 Slow", b"499 Odd")
        ):
            engines[0].script = good
            guilty.script = says(reply(said, status, *headers))
            for stream in (False, True):
                asked_before = len(guilty.calls)
                answer = await gateway.chat({"x-request-id": "mine"}, stream=stream)

                assert answer.status_code == int(status.split()[0])
                assert answer.content == said
                assert answer.headers["retry-after"] == "7"
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["x-request-id"] == "mine"
                assert nothing_leaks(gateway, str(answer.headers))
                # It is the call that is wrong: nobody else would like it better.
                assert len(guilty.calls) == asked_before + 1


async def test_an_error_page_becomes_json() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    headers = b"content-type: text/html", b"retry-after: 3"
    async with gateway_of(*engines) as gateway:
        for status in (b"400 Bad Request", b"401 Who", b"413 Big", b"499 Odd"):
            engines[1].script = says(reply(b"<html>nginx at 127.0.0.1", status, *headers))
            answer = await gateway.chat()

            assert answer.status_code == int(status.split()[0])
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["retry-after"] == "3"
            assert answer.json()["error"]["message"]
            assert nothing_leaks(gateway, answer.text)


def bad_once(bad: Script, good: Script) -> Script:
    """Whichever of the twins that share it is asked first fails."""
    met: list[Peer] = []

    async def script(peer: Peer) -> None:
        met.append(peer)
        await (bad if len(met) == 1 else good)(peer)

    return script


@pytest.mark.parametrize(
    "bad",
    [
        says(engine_error(b"500 Oh", "boom at 127.0.0.1")),
        says(reply(b"", b"302 Found", b"location: http://127.0.0.1/")),
        says(b"not http at all\r\n\r\n"),
        says(reply(b"", b"200 OK")),
        breaks_off(),
        breaks_off(b"HTTP/1.1 200 OK\r\ncontent-le"),
        breaks_off(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b'{"half": '),
        breaks_off(STREAM_HEAD),
        says(as_json({"choices": [{"finish_reason": "abort"}]})),
    ],
    ids=["500", "302", "garbage", "empty", "closed", "half head", "half body", "no event", "abort"],
)
async def test_an_engine_that_fails_is_replaced_by_another(bad: Script) -> None:
    for role, stream in product((Role.PREFILL, Role.DECODE), (False, True)):
        answered = streams(*EVENTS) if stream else says(as_json(ANSWER))
        good = {Role.PREFILL: says(as_json(PREFILLED)), Role.DECODE: answered}
        good[role] = bad_once(bad, good[role])
        engines = [Engine(role, good[role]) for role in good for _ in "12"]
        # Anew each time: an engine that closes a connection which was used before is asked again.
        async with gateway_of(*engines) as gateway:
            answer = await gateway.chat(stream=stream)

            assert answer.status_code == 200
            assert answer.content == (b"".join(EVENTS) if stream else json.dumps(ANSWER).encode())
            assert [len(engine.calls) for engine in engines if engine.role is role] == [1, 1]


@pytest.mark.parametrize("guilty", [0, 1], ids=["prefill", "decode"])
async def test_when_all_fail_the_client_hears_of_the_engine_and_no_address(guilty: int) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    engines[guilty].script = says(engine_error(b"500 Oh", "boom at 127.0.0.1"))
    async with gateway_of(*engines, on_prefill_failure="retry") as gateway:
        answer = await gateway.chat()

        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_failed"
        assert nothing_leaks(gateway, answer.text + str(answer.headers))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_full_says_when_to_come_back(stream: bool) -> None:
    full = says(engine_error(b"503 Full", "queue at 127.0.0.1", b"retry-after: 11"))
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, full)) as gateway:
        answer = await gateway.chat(stream=stream)

        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_overloaded"
        assert answer.headers["retry-after"] == "11"
        assert nothing_leaks(gateway, answer.text)


async def test_a_stream_that_fails_before_its_first_token_is_no_stream() -> None:
    """vLLM says so in a first event, after a status of 200."""
    said = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'
    decode = Engine(Role.DECODE, streams(b"data: " + said + b"\n\n", b"data: [DONE]\n\n"))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        answer = await gateway.chat(stream=True)

        assert (answer.status_code, answer.content) == (400, said)


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    """And with no finish_reason, which would be a lie."""
    decode = Engine(Role.DECODE, breaks_off(STREAM_HEAD + chunk(EVENTS[0])))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        answer = await gateway.chat(stream=True)

        assert answer.status_code == 200
        assert answer.text.startswith(EVENTS[0].decode())
        _, error, rest = answer.text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_failed"
        # "[DONE]" would say that the answer is whole.
        assert rest == ""
        assert "finish_reason" not in answer.text
        assert nothing_leaks(gateway, answer.text)
        assert len(decode.calls) == 1


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n"], ids=["lf", "crlf"])
async def test_a_client_gets_no_half_event_before_the_error_event(ends: bytes) -> None:
    """Its parser would take the half for an event, and fail on it instead of on our error."""
    event = EVENTS[0].rstrip() + ends
    half = b'data: {"choices":[{"del'
    pieces = event, event[:5], event[5:] + event + half, half[:9]
    decode = Engine(Role.DECODE, breaks_off(STREAM_HEAD, *map(chunk, pieces)))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        answer = await gateway.chat(stream=True)

        assert answer.content.startswith(3 * event)
        error, rest = answer.content[3 * len(event) :].split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert rest == b""


async def test_the_official_client_raises_our_error_when_an_engine_breaks_off() -> None:
    half = b'data: {"choices":[{"del'
    decode = Engine(Role.DECODE, breaks_off(STREAM_HEAD + chunk(EVENTS[0]) + chunk(half)))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        client = AsyncOpenAI(
            base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0
        )
        async with (
            client,
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            ) as stream,
        ):
            assert (await anext(stream)).choices[0].delta.content == "a"
            with pytest.raises(APIError, match="broke off"):
                await anext(stream)


async def test_a_stream_may_end_without_a_blank_line() -> None:
    """An engine that ends its answer has said all: nothing stays with us."""
    decode = Engine(Role.DECODE, streams(*EVENTS[:2], b"data: [DO", b"NE]\n"))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        answer = await gateway.chat(stream=True)

        assert answer.content == EVENTS[0] + EVENTS[1] + b"data: [DONE]\n"


async def test_a_long_answer_that_breaks_is_no_answer() -> None:
    """Half of it is of no use, so nothing of it goes out, and others are asked."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n"
    decode = Engine(Role.DECODE, breaks_off(head, b"x" * 500_000))
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        answer = await gateway.chat()

        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_failed")
        assert len(decode.calls) > 1


async def test_prefill_without_kv_params_is_no_prefill() -> None:
    async with gateway_of(
        Engine(Role.PREFILL, says(as_json(ANSWER))),
        Engine(Role.DECODE),
        on_prefill_failure="retry",
    ) as gateway:
        answer = await gateway.chat()

        assert answer.status_code == 502
        assert not gateway.engines[1].calls


NO_STREAMS = {
    "an error": as_json({"error": {"message": "no"}}),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a reset": reply(b"".join(EVENTS), b"205 Reset Content", b"content-type: text/event-stream"),
    "a part": reply(b"".join(EVENTS), b"206 Partial Content", b"content-type: text/event-stream"),
}


@pytest.mark.parametrize("name", NO_STREAMS)
async def test_what_is_no_stream_gets_no_first_token_before_it(name: str) -> None:
    """Prefill's token went out under its head: a body that a 204 has not, which was read as the next answer's head."""

    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, says(NO_STREAMS[name]))
    async with gateway_of(prefill, decode, pdd_protocol="neuron") as gateway:
        failed = await gateway.chat(stream=True)
        decode.script = streams(*EVENTS)
        well = await gateway.chat(stream=True)

    assert failed.status_code == 502
    assert failed.json()["error"]["code"] == "engine_failed"
    assert (well.status_code, b"[DONE]" in well.content) == (200, True)
