"""A stream that another engine goes on with is one answer to the client, head and all."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from pdgate.protocols import sse
from pdgate.protocols.call import COMPLETIONS
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    LAST_CHUNK,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    as_json,
    ask,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import Peer, chunk

pytestmark = pytest.mark.usefixtures("front_end")


def said(text: str, *tokens: int, finish: str | None = None, **more: Any) -> bytes:
    delta = {"content": text} | ({"role": "assistant"} if not tokens else {})
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": tokens}
    return _event("chatcmpl-1", {"choices": [choice], **more})


def rest(text: str, *tokens: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, "token_ids": tokens}
    return _event("cmpl-2", {"choices": [choice]})


def _event(id: str, fields: dict[str, Any]) -> bytes:
    return sse.event({"id": id, "object": "chunk", "created": 1, "model": "m", **fields})


OPENING = said("", prompt_token_ids=[1, 2])
COUNTED = _event(
    "cmpl-2",
    {
        "choices": [],
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
    },
)


class OneDies:
    """Of the decode engines that share it; whoever is asked next says the rest."""

    def __init__(self, *before: bytes) -> None:
        self._before = before

    async def __call__(self, peer: Peer) -> None:
        if json.loads(peer.request.body).get("messages"):
            await peer.send(STREAM_HEAD, *map(chunk, self._before))
            await peer.close()
        else:
            await streams(rest("c", 5), rest("d", 6, finish="stop"), COUNTED, sse.DONE)(peer)


def engines(*before: bytes) -> list[Engine]:
    script = OneDies(*before)
    return [Engine(Role.PREFILL), Engine(Role.DECODE, script), Engine(Role.DECODE, script)]


async def test_the_official_client_sees_one_answer() -> None:
    half = said("x", 9)[:20]
    async with gateway_of(*engines(OPENING, said("a", 3), said("b", 4), half), resume=True) as it:
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{it.port}/v1", api_key="k", max_retries=0)
        async with client:
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=10,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        choices = [one for chunk in chunks for one in chunk.choices]
        usage = chunks[-1].usage

        assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
        assert [one.delta.role for one in choices] == ["assistant", None, None, None, None]
        assert "".join(one.delta.content or "" for one in choices) == "abcd"
        assert [one.finish_reason for one in choices if one.finish_reason] == ["stop"]
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 4, 6)
        asked = [body for engine in it.engines[1:] for body in engine.bodies]
        asked.sort(key=lambda body: "prompt" in body)
        assert (asked[1]["prompt"], asked[1]["max_tokens"]) == ([1, 2, 3, 4], 8)


async def test_there_is_one_head_and_one_last_chunk() -> None:
    async with gateway_of(*engines(OPENING, said("a", 3)), resume=True) as gateway:
        reader, writer = await gateway.wire()
        writer.write(ask(stream=True))
        answer = await reader.readuntil(LAST_CHUNK)

        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.count(b"[DONE]") == 1
        assert b"token_ids" not in answer
        # The connection is good for another call.
        writer.write(ask(stream=True))
        assert await reader.readuntil(LAST_CHUNK)


async def test_what_became_of_broken_answers_is_counted_and_told() -> None:
    async with gateway_of(*engines(OPENING, said("a", 3)), resume=True, debug_routes=True) as it:
        await it.chat(stream=True)
        await it.chat({"x-request-id": "mine"}, stream=True, stop=["x"])
        record = (await it.http.get("/debug/calls/mine")).json()
        metrics = await it.metrics()

        assert (record["resumed"], record["not_resumed"]) == (0, "a stop string may have begun")
        for result in ("resumed", "lost"):
            assert metrics["pdgate_broken_answers_total", "vllm-nixl", result] == 1


async def test_a_completion_goes_on_as_one() -> None:
    first = {"index": 0, "text": "ab", "token_ids": [3], "prompt_token_ids": [1]}
    breaking = _event("cmpl-1", {"choices": [first | {"finish_reason": None}]})

    async def script(peer: Peer) -> None:
        if json.loads(peer.request.body)["prompt"] == "hi":
            await peer.send(STREAM_HEAD, chunk(breaking))
            await peer.close()
        else:
            await streams(rest("c", 5, finish="length"), sse.DONE)(peer)

    decodes = [Engine(Role.DECODE, script) for _ in "12"]
    prefill = Engine(Role.PREFILL, says(as_json(PREFILLED)))
    async with gateway_of(prefill, *decodes, resume=True) as gateway:
        body = {"model": "m", "prompt": "hi", "stream": True, "max_tokens": 4}
        answer = await gateway.http.post(COMPLETIONS, json=body)

        chunks = [
            json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")
        ]
        assert [chunk["id"] for chunk in chunks] == ["cmpl-1", "cmpl-1"]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
