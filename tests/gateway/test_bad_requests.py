"""What is wrong with a request is said as OpenAI says it, before any engine is asked."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from pdgate.protocols.call import CHAT, COMPLETIONS, encode
from pdgate.protocols.instance import Role
from tests.support import fleet
from tests.support.fleet import (
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    gateway_of,
    post,
    question,
)

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

JSON = {"content-type": "application/json"}
BODY = json.dumps(question()).encode()


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[Gateway]:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE), **settings) as gateway:
        yield gateway


def error_of(answer: httpx2.Response, status: int, code: str | None) -> str:
    """Its message, when everything about it is as it should be."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    message: str = error["message"]
    return message


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"model": 7}', "model must be a string"),
        (b'{"model": {"deep": []}}', "model must be a string"),
        (b'{"do_remote_\\ud800": 1}', "valid"),
        (b'{"a\\ud800": 1, "model": "m"}', "valid"),
    ],
)
async def test_a_body_that_is_no_call_is_a_bad_request(body: bytes, complaint: str) -> None:
    async with pair() as gateway:
        answer = await gateway.http.post(CHAT, content=body, headers=JSON)

        assert complaint in error_of(answer, 400, None)
        assert not gateway.engines[0].calls


@pytest.mark.parametrize("length", [10, 70_000])
async def test_no_name_of_a_field_is_an_internal_error(length: int) -> None:
    """Long bodies are read by a decoder of their own."""
    async with pair() as gateway:
        body = encode({**question(user="x" * length), "\0": 1})
        answer = await gateway.http.post(CHAT, content=body, headers=JSON)

        assert answer.status_code == 200, answer.text


async def test_no_depth_of_nesting_is_an_internal_error() -> None:
    """Fields are read later than the body is, and deeper in the stack."""
    async with pair() as gateway:
        for depth in (*range(100, 1100, 50), *range(900, 1000, 7), 2000, 20_000):
            nested = b"[" * depth + b"]" * depth
            fields = b'{"model": "m", "vllm_xargs": %b, "prompt": %b}' % (nested, nested)
            answer = await gateway.http.post(COMPLETIONS, content=fields, headers=JSON)

            assert answer.status_code in (200, 400), (depth, answer.text)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "json"])
async def test_another_content_type_is_refused(media: str) -> None:
    async with pair() as gateway:
        answer = await gateway.http.post(CHAT, content=BODY, headers={"content-type": media})

        error_of(answer, 415, "unsupported_media_type")
        assert not gateway.engines[0].calls


@pytest.mark.parametrize("media", [None, "application/json; charset=utf-8", "Application/JSON"])
async def test_json_needs_no_exact_content_type(media: str | None) -> None:
    async with pair() as gateway:
        headers = {"content-type": media} if media else {}
        answer = await gateway.http.post(CHAT, content=BODY, headers=headers)

        assert answer.status_code == 200


async def test_a_compressed_body_is_refused() -> None:
    async with pair() as gateway:
        headers = {**JSON, "content-encoding": "gzip"}
        answer = await gateway.http.post(CHAT, content=gzip.compress(BODY), headers=headers)

        error_of(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("length", [101, 10_000, 8 << 20])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_and_the_connection_closed(
    length: int, chunked: bool
) -> None:
    """The client reads the answer though it has not sent everything."""
    body = b"x" * length
    framed = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % length
    head = b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\n\r\n" % (CHAT.encode(), framed)
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (length, body)
    async with pair(max_body_bytes=100) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(head + body)
        said = await reader.read()

        assert said.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in said
        assert b"\r\nx-request-id: " in said
        assert b'"code":"request_too_large"' in said
        assert not gateway.engines[0].calls
        assert (await gateway.metrics())["pdgate_requests_refused_total", "413"] == 1


async def test_a_body_of_just_the_limit_passes() -> None:
    async with pair(max_body_bytes=len(BODY)) as gateway:
        assert (await gateway.http.post(CHAT, content=BODY, headers=JSON)).status_code == 200


async def test_a_client_that_expects_is_refused_before_it_sends() -> None:
    async with pair(max_body_bytes=10) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n"
            % CHAT.encode()
        )

        said = await reader.readline()
        if fleet.HTTP == "hypercorn":
            # It lets bodies come before the application has seen the head.
            assert said.startswith(b"HTTP/1.1 100 ")
            await reader.readuntil(b"\r\n\r\n" if said.strip() else b"\r\n")
            said = await reader.readline()
        assert said.startswith(b"HTTP/1.1 413 ")


async def test_an_unknown_model_is_not_found() -> None:
    async with pair() as gateway:
        answer = await gateway.chat(model="other")

        assert "'other'" in error_of(answer, 404, "model_not_found")
        assert answer.json()["error"]["param"] == "model"


async def test_a_name_is_needed_only_where_several_models_are_served() -> None:
    fields: dict[str, list[str]] = {"messages": []}
    async with pair() as gateway:
        assert (await gateway.http.post(CHAT, json=fields)).status_code == 200
    engines = Engine(Role.PREFILL, None, "m", "n"), Engine(Role.DECODE, None, "m", "n")
    async with gateway_of(*engines) as gateway:
        answer = await gateway.http.post(CHAT, json=fields)

        assert "several are served" in error_of(answer, 400, None)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/v1/nothing", "/%00"])
async def test_an_unknown_route_is_not_found(path: str) -> None:
    async with pair() as gateway:
        error_of(await gateway.http.get(path), 404, "not_found")
        error_of(await gateway.http.post(path, content=BODY), 404, "not_found")


@pytest.mark.parametrize("host", [b"[::", b"a/b?c#d", b"\xff"])
async def test_no_host_header_breaks_an_error(host: bytes) -> None:
    async with pair() as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(b"GET /nowhere HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % host)
        said = await reader.read()

        assert said.startswith(b"HTTP/1.1 404 ")
        assert b"GET /nowhere: Not Found" in said


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allowed: str) -> None:
    async with pair() as gateway:
        answer = await gateway.http.request(method, path)

        error_of(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_head_has_no_body() -> None:
    async with pair() as gateway:
        answer = await gateway.http.head(CHAT)

        assert (answer.status_code, answer.content) == (405, b"")


async def test_a_role_that_nobody_has_is_a_503_that_says_when_to_come_back() -> None:
    async with gateway_of(Engine(Role.PREFILL)) as gateway:
        answer = await gateway.chat()

        message = error_of(answer, 503, "no_instance")
        assert "decode" in message
        assert int(answer.headers["retry-after"]) > 0


async def test_a_fleet_that_is_all_down_is_a_503_too() -> None:
    async with gateway_of() as gateway:
        answer = await gateway.chat()

        error_of(answer, 503, "no_instance")
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "where",
    ["pdgate.gateway.intake.Call", "pdgate.forwarders.vllm_nixl.VllmNixl.decode"],
    ids=["intake", "forwarder"],
)
async def test_a_bug_is_an_internal_error_without_details(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def buggy(*_: object, **__: object) -> None:
        raise KeyError("secret of http://10.0.0.1:8100")

    monkeypatch.setattr(where, buggy)
    async with pair() as gateway:
        answer = await gateway.chat()

        assert error_of(answer, 500, None) == "internal error"
        assert "KeyError" in caplog.text
        assert "secret" not in answer.text
        assert "Traceback" in caplog.text
        # The next caller is served on.
        monkeypatch.undo()
        assert (await gateway.chat()).status_code == 200


async def test_a_bug_on_another_route_is_an_internal_error_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def buggy(_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("pdgate.gateway.metrics.page.generate_latest", buggy)
    async with pair() as gateway:
        answer = await gateway.http.get("/metrics")

        assert error_of(answer, 500, None) == "internal error"


async def test_what_is_not_http_is_a_400() -> None:
    async with pair() as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(b"nonsense\r\n\r\n")

        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")


async def test_two_ways_to_say_the_length_are_refused() -> None:
    """Who else is on the way might cut the stream elsewhere."""
    async with pair() as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(post(b"0\r\n\r\n", b"transfer-encoding: chunked"))

        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        assert not gateway.engines[0].calls
