"""--passthrough: what nobody here knows goes to one engine of the model, as it came."""

import json
from typing import Any

import pytest

from pdgate.protocols import response_id
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
    gateway_of,
    says,
)
from tests.support.raw_server import chunk, reply

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

HEARD = {"text": "hi"}
FORM = (
    b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\0model\r\n'
    b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--X--\r\n'
)
FORM_TYPE = {"content-type": "multipart/form-data; boundary=X"}


def fleet() -> tuple[Engine, Engine]:
    first, other = (Engine(Role.PLAIN, says(as_json(HEARD)), name) for name in ("a", "b"))
    return first, other


async def last(gateway: Gateway, *asked: Any, **said: Any) -> Engine:
    """Whom the request has come to."""
    before = [len(engine.calls) for engine in gateway.engines]
    answer = await gateway.http.request(*asked, **said)
    assert answer.status_code == 200, answer.text
    (found,) = (
        engine
        for engine, calls in zip(gateway.engines, before, strict=True)
        if len(engine.calls) > calls
    )
    return found


async def test_nothing_passes_unless_it_is_asked_for() -> None:
    async with gateway_of(*fleet()) as gateway:
        said = await gateway.http.post("/v1/audio/voices", json={"model": "a"})

        assert said.status_code == 404


async def test_json_forms_and_queries_say_which_model() -> None:
    async with gateway_of(*fleet(), passthrough=True) as gateway:
        first, other = gateway.engines
        path = "/v1/audio/transcriptions"
        assert await last(gateway, "POST", path, content=FORM % b"b", headers=FORM_TYPE) is other
        assert other.calls[-1].body == FORM % b"b"
        assert other.calls[-1].header(b"content-type") == FORM_TYPE["content-type"].encode()
        assert await last(gateway, "POST", "/v1/audio/speech", content=b'{"model":  "a"}') is first
        assert first.calls[-1].body == b'{"model":  "a"}'
        assert await last(gateway, "POST", "/v1/files", data={"model": "b", "x": "1"}) is other
        assert await last(gateway, "PUT", "/v1/x/y%20z?model=b&n=1", content=b"\0\1") is other
        assert other.calls[-1].line == b"PUT /v1/x/y%20z?model=b&n=1 HTTP/1.1"
        assert other.calls[-1].body == b"\0\1"
        said = await gateway.http.post("/v1/files", content=b"\0")
        assert (said.status_code, said.json()["error"]["param"]) == (400, "model")


async def test_an_alias_is_renamed_wherever_it_stands() -> None:
    models = [{"name": "b", "aliases": ["gpt"]}]
    async with gateway_of(*fleet(), passthrough=True, models=models) as gateway:
        _, other = gateway.engines
        await last(gateway, "POST", "/v1/x", content=FORM % b"gpt", headers=FORM_TYPE)
        await last(gateway, "POST", "/v1/x", json={"model": "gpt", "n": 1})
        await last(gateway, "DELETE", "/v1/x?model=gpt&a=%2F")

        form, fields, query = other.calls
        assert form.body == FORM % b"b"
        assert json.loads(fields.body) == {"model": "b", "n": 1}
        assert query.line == b"DELETE /v1/x?model=b&a=%2F HTTP/1.1"


DIALS = "a_198.51.100.9:5000"
"""A request id in which some engines read an address."""


async def test_what_lets_clients_choose_whom_engines_dial_does_not_pass() -> None:
    dial = {"kv_transfer_params": {"remote_host": "198.51.100.9"}}
    async with gateway_of(*fleet(), passthrough=True) as gateway:
        for body in (
            json.dumps({"model": "a", **dial}).encode(),
            json.dumps({"model": "a", "requests": [dial]}).encode(),
            json.dumps([dial]).encode(),
            json.dumps({"model": "a", **dial}).encode("utf-16"),
            json.dumps({"model": "a", "request_id": DIALS}).encode(),
            json.dumps({"model": "a", "requests": [{"request_id": DIALS}]}).encode(),
            b'{"model":"a","x":{"request\\u005fid":"%b"}}' % DIALS.encode(),
            b'{"model":"a","request_id":"a\\u005f%b"}' % DIALS.removeprefix("a_").encode(),
        ):
            for kind in ("application/json", "text/plain"):
                said = await gateway.http.post(
                    "/v1/batch", content=body, headers={"content-type": kind}
                )
                assert (body, said.status_code) == (body, 400)
        said = await gateway.http.post("/v1/batch", data={"model": "a", "request_id": DIALS})
        assert said.status_code == 400
        assert not any(engine.calls for engine in gateway.engines)


async def test_what_goes_on_with_a_stored_response_says_no_more_than_others_may() -> None:
    kept = response_id.new("plain-0", "a")
    async with gateway_of(*fleet(), passthrough=True) as gateway:
        for end in ("/cancel", "/anything"):
            said = await gateway.http.post(
                f"/v1/responses/{kept}{end}", json={"kv_transfer_params": {"remote_host": "h"}}
            )
            assert (end, said.status_code) == (end, 400)
        assert not any(engine.calls for engine in gateway.engines)


@pytest.mark.parametrize(
    "path",
    [
        "/admin/instances", "/debug/calls/1", "/metrics", "/v2/x", "/v1/../metrics",
        "/v1/%2e%2e/metrics", "/v1/a%2fb", "/v1//x", "/v1/load_lora_adapter", "/v1/models/none",
        "/v1/load_lora_adapter/", "/v1/responses/", "/v1/completions/", "/v1/embeddings/",
        "/v1/x?\xff", "/v1/responses/r?\xff",
    ],
)  # fmt: skip
async def test_other_routes_never_pass(path: str) -> None:
    async with gateway_of(*fleet(), passthrough=True) as gateway:
        _, writer = wire = await gateway.wire()
        writer.write(
            b"POST %b?model=a HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n"
            % path.encode("latin-1")
        )
        status = await wire[0].readline()

        assert status.split()[1] in (b"404", b"405", b"400")
        assert not any(engine.calls for engine in gateway.engines)


async def test_hop_by_hop_headers_stay_here() -> None:
    async with gateway_of(*fleet(), passthrough=True) as gateway:
        headers = {"te": "trailers", "cookie": "a=b", "traceparent": "00-1-2-01", "x-api-key": "k"}
        first = await last(gateway, "POST", "/v1/x?model=a", content=b"a", headers=headers)

        names = {name for name, _ in first.calls[0].headers}
        assert names == {
            b"host",
            b"content-type",
            b"content-length",
            b"x-request-id",
            b"traceparent",
        }


async def test_answers_of_any_kind_pass_as_they_come() -> None:
    async with gateway_of(Engine(Role.PLAIN), passthrough=True) as gateway:
        engine = gateway.engines[0]
        engine.script = says(reply(b"\0\1", b"201 Created", b"content-type: audio/wav"))
        said = await gateway.http.post("/v1/audio/speech", json={})
        assert (said.status_code, said.content) == (201, b"\0\1")
        assert said.headers["content-type"] == "audio/wav"
        engine.script = says(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert (await gateway.http.delete("/v1/files/1")).status_code == 204


async def test_a_stream_passes_event_by_event() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held), passthrough=True) as gateway:
        reader, writer = await gateway.wire()
        writer.write(b"POST /v1/x HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n")
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(b"data: 1\n\n"))

        # Before there is a second one.
        assert (await reader.readuntil(b"data: 1\n\n")).startswith(b"HTTP/1.1 200")


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with gateway_of(*fleet(), passthrough=True, max_body_bytes=10) as gateway:
        said = await gateway.http.post("/v1/x?model=a", content=b"x" * 11)

        assert said.status_code == 413


async def test_what_failed_is_not_done_twice_unless_it_only_asks() -> None:
    engines = [Engine(Role.PLAIN, says(as_json({}, b"500 Oops"))) for _ in "ab"]
    async with gateway_of(*engines, passthrough=True) as gateway:
        assert (await gateway.http.post("/v1/x", content=b"x")).status_code == 502

        assert sum(len(engine.calls) for engine in engines) == 1
