"""The picker, asked by hand: what a data plane says and is answered, and what is left afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.gateway.endpoint_picker import picking, wire
from pdgate.gateway.endpoint_picker.picking import EndpointPicker
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.ext_proc import (
    DESTINATION,
    QUESTION,
    PickerClient,
    at,
    destination,
    headers_set,
    picker_at,
    refusal,
    streamed,
)
from tests.support.fleet import Engine, Gateway, as_json, gateway_of
from tests.support.ports import free_port
from tests.support.waiting import until

PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
FULL, BUFFERED, NONE = wire.FULL_DUPLEX, wire.BUFFERED, wire.NONE
BODY = json.dumps(QUESTION).encode()
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@asynccontextmanager
async def picker_of(
    *engines: Engine, epp: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, PickerClient]]:
    port = free_port()
    async with (
        gateway_of(*engines, epp=at(port, **(epp or {})), **settings) as gateway,
        picker_at(port) as picker,
    ):
        yield gateway, picker


def addressed(engine: Engine) -> str:
    return engine.url.removeprefix("http://")


async def in_flight(gateway: Gateway) -> float:
    return (await gateway.metrics())["pdgate_calls_in_flight",]


async def test_a_split_call_is_told_both_engines_and_holds_them_until_its_response_has_ended() -> (
    None
):
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with picker_of(prefill, decode) as (gateway, picker):
        asking = picker.request()
        choice = await asking.asks(stream=True)

        assert destination(choice) == [addressed(decode)]
        assert headers_set(choice)[PREFILLER] == addressed(prefill)
        assert headers_set(choice)[ENCODERS] == ""
        assert choice.request_headers.response.clear_route_cache
        assert await in_flight(gateway) == 1

        await asking.response_head(served=addressed(decode))
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        last = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode()
        await asking.response_body(b"data: 1\n\n", ends=False)
        assert await in_flight(gateway) == 1
        await asking.response_body(last + b"data: [DONE]\n\n")

        await until(lambda: is_idle(gateway), "a call that has ended")
        counted = await gateway.metrics()
        assert counted["pdgate_calls_total", "m", "ok", "disaggregated", "vllm-nixl"] == 1
        assert counted["pdgate_tokens_total", "generated", "m"] == 3
        assert counted["pdgate_endpoint_picks_total", "first"] == 1


async def is_idle(gateway: Gateway) -> bool:
    return await in_flight(gateway) == 0


async def test_a_body_comes_back_as_it_was_in_pieces_of_62_000_bytes_and_ends_once() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (_, picker):
        asking = picker.request()
        await asking.head()
        body = json.dumps({**QUESTION, "user": "x" * 150_000}).encode()
        for start in range(0, len(body), 40_000):
            piece = body[start : start + 40_000]
            await asking.body(piece, ends=start + 40_000 >= len(body))

        assert (await asking.read()).HasField("request_headers")
        answers = [await asking.read() for _ in range(3)]
        assert b"".join(map(streamed, answers)) == body
        ends = [
            one.request_body.response.body_mutation.streamed_response.end_of_stream
            for one in answers
        ]
        assert ends == [False, False, True]


async def test_trailers_end_a_body_whose_pieces_did_not() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (_, picker):
        asking = picker.request()
        await asking.head()
        await asking.body(BODY, ends=False)
        await asking.say(request_trailers={})

        head, piece, trailers = [await asking.read() for _ in range(3)]
        assert destination(head)
        assert streamed(piece) == BODY
        assert not piece.request_body.response.body_mutation.streamed_response.end_of_stream
        assert trailers.HasField("request_trailers")


async def test_a_buffered_body_is_answered_by_the_choice() -> None:
    engine = Engine(Role.PLAIN)
    async with picker_of(engine) as (gateway, picker):
        asking = picker.request()
        await asking.head(modes=(BUFFERED, NONE))
        assert (await asking.read()).HasField("request_headers")
        await asking.body(BODY)

        assert destination(await asking.read(), "request_body") == [addressed(engine)]
        await asking.response_head()
        assert await in_flight(gateway) == 1
        # No more is to come of a response whose body is not shown.
        await asking.done()
        await until(lambda: is_idle(gateway), "a call that has ended")
        calls = await gateway.metrics()
        assert calls["pdgate_calls_total", "m", "ok", "plain", "plain"] == 1


async def test_a_request_without_a_body_is_told_an_engine() -> None:
    engine = Engine(Role.PLAIN)
    async with picker_of(engine) as (_, picker):
        for path in ("/v1/models", "/metrics", "/v1/anything?model=m"):
            asking = picker.request()
            await asking.head(path, "GET", ends=True)
            assert destination(await asking.read()) == [addressed(engine)]


async def test_what_a_client_says_of_whom_engines_dial_is_taken_away() -> None:
    decode = Engine(Role.DECODE)
    named = {PREFILLER: "192.0.2.1:80", ENCODERS: "192.0.2.1:80", DESTINATION: "192.0.2.1:80"}
    async with picker_of(Engine(Role.PLAIN), decode) as (_, picker):
        choice = await picker.request().asks(named)

        assert headers_set(choice)[PREFILLER] == headers_set(choice)[ENCODERS] == ""
        assert "192.0.2.1:80" not in destination(choice)


@pytest.mark.parametrize("kind", ["list", "text"])
async def test_only_engines_of_the_subset_are_chosen(kind: str) -> None:
    engines = [Engine(Role.PLAIN) for _ in range(3)]
    async with picker_of(*engines, epp={"fallbacks": 2}) as (_, picker):
        wanted = [addressed(engines[1]), addressed(engines[2])]
        subset = wanted if kind == "list" else ", ".join(wanted)
        for _ in range(4):
            choice = await picker.request().asks(subset=subset)
            assert sorted(destination(choice)) == sorted(wanted)


@pytest.mark.parametrize("subset", [[], ["192.0.2.1:80"]], ids=["empty", "unknown"])
async def test_a_subset_without_an_engine_is_503(subset: list[str]) -> None:
    async with picker_of(Engine(Role.PLAIN)) as (_, picker):
        status, error = refusal(await picker.request().asks(subset=subset))

        assert (status, error["code"]) == (503, "no_instance")


async def test_who_else_could_answer_has_room_for_the_call() -> None:
    """It would refuse the call, which another one holds."""
    engines = [Engine(Role.PLAIN) for _ in range(3)]
    for engine, length in zip(engines, (1000, 8000, 8000), strict=True):
        card = {"id": "m", "object": "model", "max_model_len": length}
        engine.probes["/v1/models"] = as_json({"object": "list", "data": [card]})
    async with picker_of(*engines, epp={"fallbacks": 2}) as (_, picker):
        for tokens, expected in ((100, engines), (4000, engines[1:])):
            choice = await picker.request().asks(max_tokens=tokens)
            assert sorted(destination(choice)) == sorted(map(addressed, expected))


async def test_a_response_of_the_next_engine_says_that_the_first_failed() -> None:
    engines = [Engine(Role.PLAIN), Engine(Role.PLAIN)]
    async with picker_of(*engines) as (gateway, picker):
        asking = picker.request()
        first, second = destination(await asking.asks())
        assert {first, second} == {addressed(one) for one in engines}
        await asking.response_head(served=second, ends=True)

        await until(lambda: is_idle(gateway), "a call that has ended")
        counted = await gateway.metrics()
        assert counted["pdgate_endpoint_picks_total", "fallback"] == 1
        assert sum(v for k, v in counted.items() if k[0] == "pdgate_retried_legs_total") == 1
        assert sum(v for k, v in counted.items() if k[0] == "pdgate_calls_total") == 1


async def test_an_engine_whose_responses_fail_is_left_out() -> None:
    bad, good = Engine(Role.PLAIN), Engine(Role.PLAIN)
    # Not tried again before the test is over, however slow the machine.
    health = HealthSection(interval_seconds=0.05, timeout_seconds=10, retry_seconds=600)
    settings: dict[str, Any] = {"plain_policy": "round_robin", "health": health}
    async with picker_of(bad, good, **settings) as (_, picker):
        for _ in range(12):
            asking = picker.request()
            chosen = destination(await asking.asks())[0]
            await asking.response_head(500 if chosen == addressed(bad) else 200, ends=True)

        chosen_now = {destination(await picker.request().asks())[0] for _ in range(4)}
        assert chosen_now == {addressed(good)}


@pytest.mark.parametrize("stage", ["before its body", "before the response", "in the response"])
async def test_a_client_that_leaves_frees_its_engines(stage: str) -> None:
    async with picker_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as (gateway, picker):
        asking = picker.request()
        if stage == "before its body":
            await asking.head()
            await asking.body(BODY[:10], ends=False)
        else:
            await asking.asks(stream=True)
        if stage == "in the response":
            await asking.response_head()
            await asking.response_body(b"data: 1\n\n", ends=False)
        asking.leaves()

        await until(lambda: is_idle(gateway), "engines that are free")
        counted = await gateway.metrics()
        gone = sum(
            value
            for name, value in counted.items()
            if name[0] == "pdgate_calls_total" and "client_gone" in name
        )
        assert gone == (0 if stage == "before its body" else 1)


async def test_without_engines_the_answer_is_503_and_comes_at_once() -> None:
    async with picker_of() as (_, picker):
        status, error = refusal(await picker.request().asks())

        assert (status, error["code"]) == (503, "no_instance")


async def test_what_is_no_call_is_refused_as_serve_refuses_it() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (gateway, picker):
        for body, status in ((b"{", 400), (b'{"model": "other"}', 404)):
            asking = picker.request()
            await asking.head()
            await asking.body(body)
            assert refusal(await asking.read())[0] == status
            # What is answered is over, whatever else comes of it.
            assert await asking.read() is None
        assert await in_flight(gateway) == 0


async def test_a_body_beyond_the_limit_is_refused_before_it_is_whole() -> None:
    async with picker_of(Engine(Role.PLAIN), max_body_bytes=1000) as (_, picker):
        asking = picker.request()
        await asking.head()
        await asking.body(b"x" * 600, ends=False)
        await asking.body(b"x" * 600, ends=False)

        assert refusal(await asking.read())[0] == 413


async def test_calls_wait_for_room_and_those_beyond_the_line_get_429() -> None:
    limits = {"decode_concurrency": 1, "waiting": 1, "wait_seconds": 60.0}
    pair = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with picker_of(*pair, admission=limits) as (gateway, picker):
        first = picker.request()
        await first.asks()
        waiting = asyncio.create_task(picker.request().asks())

        async def waits() -> bool:
            return (await gateway.metrics()).get(("pdgate_calls_waiting", "m")) == 1

        await until(waits, "a call in the line")
        status, error = refusal(await picker.request().asks())
        assert (status, error["code"]) == (429, "gateway_overloaded")

        await first.response_head(ends=True)
        assert destination(await waiting)


async def test_a_call_whose_objective_gives_way_takes_no_place_from_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not from a less urgent one either, as it does not wait itself."""
    made: list[EndpointPicker] = []

    def make(*args: Any) -> EndpointPicker:
        made.append(EndpointPicker(*args))
        return made[-1]

    monkeypatch.setattr(picking, "EndpointPicker", make)
    limits = {"decode_concurrency": 1, "waiting": 1, "wait_seconds": 60.0}
    async with picker_of(Engine(Role.PLAIN), admission=limits) as (gateway, picker):
        made[0].priority_of = {"rest": -1}.get
        first = picker.request()
        await first.asks()
        waiting = asyncio.create_task(picker.request().asks({"x-priority": "7"}))

        async def waits() -> bool:
            return (await gateway.metrics()).get(("pdgate_calls_waiting", "m")) == 1

        await until(waits, "a call in the line")
        choice = await picker.request().asks({"x-gateway-inference-objective": "rest"})
        assert refusal(choice)[0] == 429
        assert await waits()

        await first.response_head(ends=True)
        assert destination(await waiting)


@pytest.mark.parametrize("split", [True, False], ids=["split", "plain"])
async def test_a_prompt_counts_as_read_in_time_though_its_whole_response_has_not_begun(
    split: bool,
) -> None:
    """Calls wait until an engine has little to read, and nothing tells when it has read this one."""
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE)] if split else [Engine(Role.PLAIN)]
    long = [{"role": "user", "content": "word " * 1_200}]
    async with picker_of(*engines, targets={"ttft_seconds": 0.5}) as (_, picker):
        asking = [picker.request() for _ in range(3)]
        for one in asking:
            assert destination(await one.asks(messages=long))


async def test_a_key_is_asked_for_and_its_calls_are_counted() -> None:
    keys = ({"name": "ann", "sha256": hash_of(b"secret")},)
    async with picker_of(Engine(Role.PLAIN), api_keys=keys) as (_, picker):
        assert refusal(await picker.request().asks())[0] == 401
        choice = await picker.request().asks({"authorization": "Bearer secret"})

        assert destination(choice)
        assert headers_set(choice)["authorization"] == ""


async def test_an_alias_becomes_the_name_that_engines_know() -> None:
    models = ({"name": "m", "aliases": ("best",)},)
    async with picker_of(Engine(Role.PLAIN), models=models) as (_, picker):
        asking = picker.request()
        await asking.head()
        await asking.body(json.dumps({**QUESTION, "model": "best"}).encode())

        head, piece = await asking.read(), await asking.read()
        assert json.loads(streamed(piece))["model"] == "m"
        assert headers_set(head)["content-length"] == str(len(streamed(piece)))


async def test_media_are_spread_over_encode_engines() -> None:
    engines = [Engine(Role.PREFILL), Engine(Role.DECODE), Engine(Role.ENCODE)]
    async with picker_of(*engines) as (gateway, picker):
        asking = picker.request()
        content = [{"type": "text", "text": "what is it?"}, IMAGE]
        choice = await asking.asks(messages=[{"role": "user", "content": content}])

        assert headers_set(choice)[ENCODERS] == addressed(engines[2])
        await asking.response_head(ends=True)
        await until(lambda: is_idle(gateway), "engines that are free")


async def test_health_tells_that_it_drains_and_what_runs_may_end() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (gateway, picker):
        services = ("", "readiness", wire.SERVICE, "liveness")
        assert [await picker.health(name) for name in services] == [wire.SERVING] * 4
        with pytest.raises(grpc.aio.AioRpcError, match="no such service"):
            await picker.health("other")
        asking = picker.request()
        await asking.asks()

        gateway.drain.begin()
        assert [await picker.health(name) for name in services] == [
            *[wire.NOT_SERVING] * 3,
            wire.SERVING,
        ]
        assert refusal(await picker.request().asks())[0] == 503
        assert not gateway.drain.over
        await asking.response_head(ends=True)
        await until(lambda: gateway.drain.over, "a drain that is over")


async def test_what_only_looks_on_is_not_answered() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (gateway, picker):
        asking = picker.request()
        await asking.head(ends=True, path="/v1/x", method="GET", observability_mode=True)
        await asking.done()
        await until(lambda: is_idle(gateway), "a call that has ended")


@pytest.mark.parametrize("mode", [wire.STREAMED, wire.BUFFERED_PARTIAL, wire.GRPC])
async def test_a_mode_in_which_no_choice_can_be_said_is_named(mode: int) -> None:
    async with picker_of(Engine(Role.PLAIN)) as (_, picker):
        asking = picker.request()
        await asking.head(modes=(mode, NONE))
        status, error = refusal(await asking.read())

        assert status == 500
        assert "FULL_DUPLEX_STREAMED" in error["message"]


async def test_messages_out_of_order_end_that_stream_alone() -> None:
    async with picker_of(Engine(Role.PLAIN)) as (gateway, picker):
        wrong: list[dict[str, Any]] = [
            {"request_body": {"body": b"x"}},
            {"response_headers": {}},
            {},
        ]
        for parts in wrong:
            asking = picker.request()
            await asking.say(**parts)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await asking.read()
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert destination(await picker.request().asks())
        assert await in_flight(gateway) == 1
