"""Why this pair: what GET /debug/calls/{id} has of every choice."""

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, as_json, engine_error, gateway_of, says

PREFILLS = {"prefill_policy": "prefix_then_load", "debug_routes": True}


async def test_a_call_can_be_asked_why_its_pair_was_chosen() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, **PREFILLS) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        found = (await gateway.http.get("/debug/calls/mine")).json()

    prefill, decode = found["choices"]
    legs = found["attempts"][0]["legs"]
    assert [one["chosen"] for one in (prefill, decode)] == [leg["instance"] for leg in legs]
    assert (prefill["attempt"], prefill["role"], prefill["policy"]) == (
        1,
        "prefill",
        "prefix_then_load",
    )
    assert {one["instance"] for one in prefill["considered"]} == {"prefill-0", "prefill-1"}
    assert all("idleness 1.000" in one["why"] for one in prefill["considered"])
    assert prefill["rule"][-1] == {"by": "score", "best": "most", "words": "highest score"}
    assert prefill["decided_by"] == "drawn of 2 equals"
    assert (decode["policy"], len(decode["considered"]), decode["left_out"]) == ("", 1, [])


async def test_a_second_attempt_says_who_failed_the_first() -> None:
    failing = says(engine_error(b"500 Internal Server Error", "broken"))
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, failing), Engine(Role.DECODE)
    engines[2].script = says(as_json({"choices": [{"finish_reason": "stop"}]}))
    async with gateway_of(*engines, debug_routes=True, decode_policy="round_robin") as gateway:
        for name in ("one", "two"):
            await gateway.chat({"x-request-id": name})
        calls = [(await gateway.http.get(f"/debug/calls/{name}")).json() for name in ("one", "two")]

    retried = next(call for call in calls if len(call["attempts"]) == 2)
    last = retried["choices"][-1]
    assert (last["attempt"], last["role"], last["chosen"]) == (2, "decode", "decode-1")
    assert last["left_out"] == [{"instance": "decode-0", "why": "it has failed this call before"}]


@pytest.mark.parametrize("wanted", [True, False])
async def test_nobody_is_told_unless_somebody_may_look(wanted: bool) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, debug_routes=wanted) as gateway:
        await gateway.chat({"x-request-id": "mine"})

        answer = await gateway.http.get("/debug/calls/mine")

    assert answer.status_code == (200 if wanted else 404)
    assert ("choices" in answer.json()) is wanted


async def test_headers_name_what_decided() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, **PREFILLS, debug_headers=True) as gateway:
        answer = await gateway.chat({})

    assert answer.headers["x-pd-prefill-chosen-by"] == "prefix_then_load: drawn of 2 equals"
    assert "x-pd-decode-chosen-by" not in answer.headers
