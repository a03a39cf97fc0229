"""One request of an operator, and what it does to calls and to all engines of a model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.control.wire import ROUTES
from pdgate.protocols.instance import Role
from tests.gateway.control.controlled import KNOWN, ONCE, REFUSES, Controlled, controlling, tell
from tests.support import fleet
from tests.support.fleet import Held, as_json
from tests.support.waiting import until

UPDATE = "/update_weights_from_disk"
DISK = {"model_path": "/weights/2"}


@pytest.mark.usefixtures("front_end")
async def test_all_engines_of_a_model_are_told_and_the_answer_says_what_each_did(
    tmp_path: Path,
) -> None:
    engines = [Controlled(Role.PLAIN) for _ in range(2)]
    engines[1].answers["/flush_cache"] = REFUSES
    async with controlling(tmp_path, *engines) as gateway:
        status, said = await tell(gateway, "/flush_cache")

        assert status == 207
        assert (said["model"], said["ok"], said["held"]) == ("m", False, [])
        told = [{name: one[name] for name in ("id", "ok", "status")} for one in said["engines"]]
        assert told == [
            {"id": "plain-0", "ok": True, "status": 200},
            {"id": "plain-1", "ok": False, "status": 400},
        ]
        assert said["engines"][1]["body"]["message"] == "no such file"
        assert [one.orders for one in engines] == [[("POST /flush_cache", {})]] * 2


async def test_every_route_is_for_who_knows_the_admin_token(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    async with controlling(tmp_path, engine) as gateway:
        for route in ROUTES:
            for method in route.methods:
                answer = await gateway.http.request(method, route.path)
                assert answer.status_code == 401, (method, route.path)
        assert engine.paths == []


@pytest.mark.parametrize(
    ("target", "body", "status", "words"),
    [
        ("/flush_cache", None, 400, "you must name a model"),
        ("/flush_cache?model=other", None, 404, "does not exist"),
        ("/flush_cache?model=a&model=b", None, 400, "2 times"),
        ("/pause?model=a&mode=perhaps", None, 400, "mode must be one of"),
        ("/abort_request?model=a", {"rid": 7}, 400, "must be strings"),
        ("/update_weights_from_disk?model=a&engine=plain-0", DISK, 400, "all engines"),
        ("/get_weights_by_name?model=a&engine=nobody", {}, 404, "has no engine"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_any_engine_is_told(
    tmp_path: Path, target: str, body: Any, status: int, words: str
) -> None:
    engines = Controlled(Role.PLAIN, None, "a"), Controlled(Role.PLAIN, None, "b")
    async with controlling(tmp_path, *engines) as gateway:
        answered, said = await tell(gateway, target, body)

        assert answered == status
        assert words in said["error"]["message"]
        assert [one.paths for one in engines] == [[], []]
        # Nothing is held by it.
        assert (await gateway.chat(model="a")).status_code == 200


async def test_the_model_is_named_in_the_query_or_in_the_body_and_others_are_left_alone(
    tmp_path: Path,
) -> None:
    one, other = Controlled(Role.PLAIN, None, "a"), Controlled(Role.PLAIN, None, "b")
    async with controlling(tmp_path, one, other) as gateway:
        assert (await tell(gateway, UPDATE, {**DISK, "model": "a"}))[0] == 200
        assert (await tell(gateway, f"{UPDATE}?model=b&mode=abort", DISK))[0] == 200

    assert one.orders == [(f"POST {UPDATE}", DISK), ("POST /flush_cache", {})]
    assert other.orders == one.orders


async def test_ranks_behind_one_url_are_told_once(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    engine.entry = {"dp": 3}
    async with controlling(tmp_path, engine) as gateway:
        _, said = await tell(gateway, "/reset_prefix_cache?reset_external=true")

    assert engine.paths == ["POST /reset_prefix_cache?reset_external=true"]
    assert [one["ranks"] for one in said["engines"]] == [3]


async def test_a_weight_update_waits_for_calls_that_run_and_keeps_others_waiting(
    tmp_path: Path,
) -> None:
    held = Held()
    engine = Controlled(Role.PLAIN, held)
    async with controlling(tmp_path, engine) as gateway:
        running = asyncio.create_task(gateway.chat())
        call = await held.next()
        updating = asyncio.create_task(tell(gateway, UPDATE, DISK))
        await until(lambda: _held(gateway), "calls that are held")
        waiting = asyncio.create_task(gateway.chat())
        await until(lambda: _metric(gateway, "pdgate_calls_held"), "a call that waits")
        assert engine.paths == []

        await call.peer.send(ONCE)
        assert (await running).status_code == 200
        status, said = await updating
        assert (status, said["held"], said["left_out"]) == (200, [], [])
        assert engine.paths == [f"POST {UPDATE}", "POST /flush_cache"]
        await (await held.next()).peer.send(ONCE)
        assert (await waiting).status_code == 200


async def test_an_update_with_mode_abort_ends_calls_that_run(tmp_path: Path) -> None:
    held = Held()
    engine = Controlled(Role.PLAIN, held)
    async with controlling(tmp_path, engine) as gateway:
        running = asyncio.create_task(gateway.chat())
        call = await held.next()
        status, _ = await tell(gateway, f"{UPDATE}?mode=abort", DISK)

        assert status == 200
        answer = await running
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted")
        await call.left


async def test_calls_that_do_not_end_in_time_leave_all_as_it_was(tmp_path: Path) -> None:
    held = Held()
    engine = Controlled(Role.PLAIN, held)
    async with controlling(tmp_path, engine, control={"quiet_seconds": 0.2}) as gateway:
        running = asyncio.create_task(gateway.chat())
        call = await held.next()
        status, said = await tell(gateway, UPDATE, DISK)

        assert (status, said["error"]["code"]) == (503, "calls_run")
        assert engine.paths == []
        await call.peer.send(ONCE)
        assert (await running).status_code == 200
        again = asyncio.create_task(gateway.chat())
        await (await held.next()).peer.send(ONCE)
        assert (await again).status_code == 200


async def test_a_pause_lasts_until_it_is_resumed_and_calls_wait_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    engine = Controlled(Role.PLAIN)
    short = {"wait_seconds": 0.2}
    async with controlling(tmp_path, engine, control=short) as gateway:
        status, said = await tell(gateway, "/pause?mode=wait")
        assert (status, said["held"]) == (200, ["paused"])
        answer = await gateway.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "calls_held")
        assert int(answer.headers["retry-after"]) >= 1

        assert (await tell(gateway, UPDATE, DISK))[1]["held"] == ["paused"]
        status, said = await tell(gateway, "/resume")
        assert (status, said["held"]) == (200, [])
        assert (await gateway.chat()).status_code == 200
    assert engine.paths[0] == "POST /pause?mode=wait"


async def test_no_more_calls_wait_than_may(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    async with controlling(tmp_path, engine, control={"waiting": 2}) as gateway:
        await tell(gateway, "/pause_generation", {"mode": "abort"})
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(2)]
        await until(lambda: _metric(gateway, "pdgate_calls_held", 2), "calls that wait")
        assert (await gateway.chat()).status_code == 503

        await tell(gateway, "/continue_generation")
        assert [(await one).status_code for one in waiting] == [200, 200]


async def test_what_wakes_in_parts_takes_calls_when_all_of_it_is_awake(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    async with controlling(tmp_path, engine) as gateway:
        _, said = await tell(gateway, "/release_memory_occupation")
        assert said["held"] == ["asleep:weights", "asleep:kv_cache"]
        _, said = await tell(gateway, "/resume_memory_occupation", {"tags": ["weights"]})
        assert said["held"] == ["asleep:kv_cache"]
        _, said = await tell(gateway, "/wake_up?tags=kv_cache")
        assert said["held"] == []
        assert (await gateway.chat()).status_code == 200
    assert engine.orders[1] == ("POST /resume_memory_occupation", {"tags": ["weights"]})


async def test_kv_memory_that_was_given_back_is_awake_with_the_cache_alone(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    async with controlling(tmp_path, engine) as gateway:
        assert (await tell(gateway, "/pause"))[1]["held"] == ["paused"]
        _, said = await tell(gateway, "/release_kv_cache_memory")
        assert said["held"] == ["paused", "asleep:kv_cache"]
        assert (await tell(gateway, "/wake_up?tags=kv_cache"))[1]["held"] == ["paused"]
        assert (await tell(gateway, "/resume"))[1]["held"] == []
        assert (await gateway.chat()).status_code == 200


async def test_an_engine_that_fails_an_update_gets_no_calls_until_one_succeeds_there(
    tmp_path: Path,
) -> None:
    good, bad = Controlled(Role.PLAIN), Controlled(Role.PLAIN)
    bad.answers[UPDATE] = REFUSES
    async with controlling(tmp_path, good, bad, plain_policy="round_robin") as gateway:
        status, said = await tell(gateway, UPDATE, DISK)
        assert (status, said["left_out"], said["held"]) == (207, ["plain-1"], [])
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        assert (len(good.calls), len(bad.calls)) == (4, 0)

        del bad.answers[UPDATE]
        status, said = await tell(gateway, UPDATE, DISK)
        assert (status, said["left_out"]) == (200, [])
        for _ in range(4):
            assert (await gateway.chat()).status_code == 200
        assert len(bad.calls) == 2


@pytest.mark.parametrize(
    ("target", "flush", "busy"),
    [
        (UPDATE, "/flush_cache", as_json({"success": False}, b"400 Bad Request")),
        # vLLM, while blocks are held.
        ("/update_weights", "/reset_prefix_cache", as_json({"success": False})),
    ],
    ids=["sglang", "vllm"],
)
async def test_an_engine_that_cannot_empty_its_caches_yet_is_asked_again(
    tmp_path: Path, target: str, flush: str, busy: bytes
) -> None:
    engine = Controlled(Role.PLAIN)
    engine.first[flush] = [busy, busy]
    async with controlling(tmp_path, engine) as gateway:
        status, said = await tell(gateway, target, DISK)

    assert (status, said["left_out"], said["held"]) == (200, [], [])
    assert [one["ok"] for one in said["flushed"]] == [True]
    assert len([path for path in engine.paths if flush in path]) == 3


async def test_an_operator_can_let_an_engine_in_that_was_left_out(tmp_path: Path) -> None:
    good, bad = Controlled(Role.PLAIN), Controlled(Role.PLAIN)
    bad.answers["/flush_cache"] = as_json({}, b"500 Internal Server Error")
    async with controlling(tmp_path, good, bad) as gateway:
        # It has new weights, and KV of the old ones.
        _, said = await tell(gateway, UPDATE, DISK)
        assert said["left_out"] == ["plain-1"]

        answer = await gateway.http.post("/admin/instances/plain-1/undrain", headers=KNOWN)
        assert answer.json()["state"] == "up"


async def test_where_all_engines_refuse_an_update_all_go_on_as_they_were(tmp_path: Path) -> None:
    engines = [Controlled(Role.PLAIN) for _ in range(2)]
    for engine in engines:
        engine.answers[UPDATE] = REFUSES
    async with controlling(tmp_path, *engines) as gateway:
        status, said = await tell(gateway, UPDATE, DISK)

        assert (status, said["ok"], said["left_out"], said["held"]) == (502, False, [], [])
        assert (await gateway.chat()).status_code == 200


async def test_an_engine_that_says_nothing_is_left_out_and_holds_nobody_up_for_ever(
    tmp_path: Path,
) -> None:
    good, silent = Controlled(Role.PLAIN), Controlled(Role.PLAIN)
    silent.answers[UPDATE] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    long = b"x" * (300 << 10)
    good.answers["/weight_checker"] = as_json({"checksums": long.decode()})
    async with controlling(tmp_path, good, silent, control={"engine_seconds": 0.5}) as gateway:
        status, said = await tell(gateway, UPDATE, DISK)
        assert (status, said["left_out"]) == (207, ["plain-1"])
        assert "no answer within 0.5 s" in said["engines"][1]["error"]

        # Nor may one say too much.
        _, said = await tell(gateway, "/weight_checker?engine=plain-0", {"action": "checksum"})
        assert "longer than" in said["engines"][0]["error"]


async def test_what_was_learnt_of_prefixes_is_forgotten_with_the_weights(tmp_path: Path) -> None:
    engines = [Controlled(Role.PLAIN) for _ in range(2)]
    policy = "prefix_then_load"
    long = [{"role": "user", "content": "a long beginning " * 200}]
    async with controlling(tmp_path, *engines, plain_policy=policy) as gateway:
        assert (await gateway.chat(messages=long)).status_code == 200
        assert await _metric(gateway, "pdgate_prefix_index_blocks")
        await tell(gateway, UPDATE, DISK)
        assert not await _metric(gateway, "pdgate_prefix_index_blocks")


async def test_a_body_that_is_too_long_is_refused(tmp_path: Path) -> None:
    engine = Controlled(Role.PLAIN)
    async with controlling(tmp_path, engine, control={"max_body_bytes": 1000}) as gateway:
        status, _ = await tell(gateway, UPDATE, {"model_path": "x" * 2000})

        assert status == 413
        assert engine.paths == []


async def _held(gateway: fleet.Gateway) -> bool:
    answer = await gateway.http.get("/is_paused", headers=KNOWN)
    return bool(answer.json()["held"])


async def _metric(gateway: fleet.Gateway, name: str, least: float = 1) -> bool:
    return (await gateway.metrics())[(name,)] >= least


async def test_an_engine_that_failed_in_one_step_stays_out_whatever_the_next_ones_do(
    tmp_path: Path,
) -> None:
    good, bad = Controlled(Role.PLAIN), Controlled(Role.PLAIN)
    bad.answers["/update_weights"] = REFUSES
    async with controlling(tmp_path, good, bad) as gateway:
        _, said = await tell(gateway, "/start_weight_update")
        assert said["held"] == ["updating"]
        _, said = await tell(gateway, "/update_weights", {"update_info": {}})
        assert (said["held"], said["left_out"]) == (["updating"], ["plain-1"])
        del bad.answers["/update_weights"]
        _, said = await tell(gateway, "/update_weights", {"update_info": {}})
        assert said["left_out"] == ["plain-1"]
        _, said = await tell(gateway, "/finish_weight_update")
        assert (said["held"], said["left_out"]) == ([], ["plain-1"])

        # The next update is another one.
        _, said = await tell(gateway, "/update_weights", {"update_info": {}})
        assert said["left_out"] == []


async def test_calls_that_an_operator_aborts_by_id_end_and_others_go_on(tmp_path: Path) -> None:
    held = Held()
    engine = Controlled(Role.PLAIN, held)
    async with controlling(tmp_path, engine) as gateway:
        named = {"one": {"x-request-id": "one"}, "two": {"x-request-id": "two"}}
        running = {
            name: asyncio.create_task(gateway.chat(headers)) for name, headers in named.items()
        }
        calls = [await held.next() for _ in running]
        status, _ = await tell(gateway, "/abort_request", {"rid": "one"})

        assert status == 200
        assert (await running["one"]).json()["error"]["code"] == "aborted"
        for call in calls:
            if (call.peer.request.header(b"x-request-id") or b"").startswith(b"two"):
                await call.peer.send(ONCE)
        assert (await running["two"]).status_code == 200
