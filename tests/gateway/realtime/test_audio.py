"""Sound goes to plain engines as it came, for the model that its form names, and what comes back as it comes."""

import asyncio

from pdgate.protocols.instance import Role
from tests.gateway.realtime.site import key_of
from tests.support.fleet import LAST_CHUNK, STREAM_HEAD, Engine, Held, as_json, gateway_of, says
from tests.support.raw_server import chunk
from tests.support.waiting import PATIENCE_SECONDS

PATH = "/v1/audio/transcriptions"
HEARD = as_json({"text": "hello"})


def form(model: str) -> bytes:
    sound = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\0\xff\r\n'
    field = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n'
    return sound + field + model.encode() + b"\r\n--b--\r\n"


async def test_a_key_for_a_model_is_heard_by_no_other() -> None:
    engine = Engine(Role.PLAIN, says(HEARD), "m", "other")
    headers = {"authorization": "Bearer k", "content-type": "multipart/form-data; boundary=b"}
    async with gateway_of(engine, api_keys=(key_of("k", models=("m",)),)) as gateway:
        refused = await gateway.http.post(PATH, content=form("other"), headers=headers)
        assert (refused.status_code, engine.calls) == (403, [])
        answer = await gateway.http.post(PATH, content=form("m"), headers=headers)
        assert answer.json() == {"text": "hello"}
        assert engine.calls[0].body == form("m")


async def test_a_pair_hears_nothing() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await gateway.http.post(PATH, content=form("m"), headers=headers)
        assert answer.status_code == 501


async def test_events_are_passed_on_one_by_one() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held)) as gateway:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        async with asyncio.timeout(PATIENCE_SECONDS):
            request = gateway.http.stream("POST", PATH, content=form("m"), headers=headers)
            opening = asyncio.create_task(request.__aenter__())
            call = await held.next()
            await call.peer.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            pieces = (await opening).aiter_raw()
            assert await anext(pieces) == b"data: 1\n\n"
            await call.peer.send(chunk(b"data: 2\n\n") + LAST_CHUNK)
            assert [piece async for piece in pieces] == [b"data: 2\n\n"]
            await request.__aexit__(None, None, None)
