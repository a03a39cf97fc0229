"""What becomes of a call: split, left to decode, or answered by prefill alone."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pdgate.forwarders.base import Mode
from pdgate.forwarders.retry import FRESH
from pdgate.forwarders.routing import wants_one_token
from pdgate.protocols.apis import GENERATE
from pdgate.protocols.call import COMPLETIONS, Call, encode
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import (
    Always,
    Decision,
    Never,
    SplitRule,
    Taken,
    UncachedTokensAbove,
)
from pdgate.scheduling.disaggregation.decision import (
    ALWAYS,
    DECODE_CANNOT_PREFILL,
    NO_ROOM,
    ONE_TOKEN,
    PREFILL_IS_BUSY,
    SHORT_PROMPT,
)
from tests.support.answers import prefilled, several, streamed, whole
from tests.support.scripted import D0, P0, P1, Crossing, Scripted, call_of, chat


def completion(**fields: Any) -> Call:
    return call_of(encode({"model": "m", "prompt": "hi", **fields}), COMPLETIONS)


def tokens(at_the_top: dict[str, Any] | None = None, **sampling: Any) -> Call:
    body = {"token_ids": [1], "sampling_params": sampling, **(at_the_top or {})}
    return call_of(encode(body), GENERATE)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (chat(max_tokens=1), True),
        (chat(max_completion_tokens=1), True),
        (chat(max_tokens=9, max_completion_tokens=1), True),
        (chat(max_tokens=1, max_completion_tokens=9), False),
        (chat(max_tokens=1, max_completion_tokens=None), True),
        (completion(max_tokens=1), True),
        (completion(max_tokens=9, max_completion_tokens=1), False),
        (completion(), False),
        (chat(), False),
        (chat(max_tokens=2), False),
        (chat(max_tokens=0), False),
        (chat(max_tokens=True), False),
        (chat(max_tokens="1"), False),
        (chat(max_tokens=1.0), False),
        (call_of(b'{"model":"m","prompt":"hi","max_tokens" :  1 }', COMPLETIONS), True),
        (tokens(max_tokens=1), True),
        (tokens(max_tokens=2), False),
        # What stands at the top says nothing there.
        (tokens(at_the_top={"max_tokens": 1}), False),
        # Not raw, as in a call that another engine is to go on with.
        (Call("c", "a", COMPLETIONS, {"max_tokens": 1}), True),
        (Call("c", "a", COMPLETIONS, {"max_tokens": 2}), False),
        (Call("c", "a", COMPLETIONS, {"max_tokens": True}), False),
    ],
)
def test_one_token_is_what_engines_would_make_of_the_limits(call: Call, expected: bool) -> None:
    """The newer name wins in chats, and means nothing in completions (vLLM 0.32.0)."""
    assert wants_one_token(call) is expected


def pair(protocol: str, generation: str = "") -> tuple[Instance, Instance]:
    return (
        Instance("p0", P0.url, Role.PREFILL, protocol, generation, kv="10.0.0.1:9"),
        Instance("d0", D0.url, Role.DECODE, protocol, generation, kv="10.0.1.1:9"),
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("protocol", "generation", "mode"),
    [
        ("vllm-nixl", "", Mode.BATCH),
        ("vllm-nixl", "", Mode.STAGED),
        ("vllm-kvt", "", Mode.STAGED),
        ("vllm-mooncake", "a", Mode.BATCH),
        ("vllm-mooncake", "c", Mode.BATCH),
        ("vllm-mooncake", "d", Mode.STAGED),
    ],
)
async def test_prefill_alone_answers_a_call_for_one_token(
    protocol: str, generation: str, mode: Mode, stream: bool
) -> None:
    """And hears of no hand-over, so it keeps nothing for anybody."""
    engines = Scripted(p0=streamed("a") if stream else whole("a"))
    call = chat(stream=stream, max_tokens=1)

    told = await Crossing(engines, *pair(protocol, generation), mode=mode).ask(call)

    assert engines.visits == ["p0"]
    assert engines.sent[0][0].body == call.body
    assert told.body == (b"".join(streamed("a")) if stream else json_of(whole("a")))
    assert told.record.path == "prefill_only"
    assert told.record.decisions == {1: Decision(Taken.PREFILL_ONLY, ONE_TOKEN)}
    assert not told.record.handed_over


@pytest.mark.parametrize(
    ("protocol", "mode"),
    [("sglang", Mode.BATCH), ("vllm-kvt", Mode.BATCH)],
)
async def test_a_prefill_that_serves_only_decode_is_not_asked_alone(
    protocol: str, mode: Mode
) -> None:
    engines = Scripted(p0=whole("a"), d0=whole("a"))

    await Crossing(engines, *pair(protocol), mode=mode).ask(chat(stream=False, max_tokens=1))

    assert "d0" in engines.visits


async def test_even_what_must_not_be_split_stays_on_prefill_for_one_token() -> None:
    """Lists and choices stay together there too."""
    engines = Scripted(p0=several(whole("a")))

    await Crossing(engines, P0, D0).ask(chat(stream=False, max_tokens=1, n=2))

    assert engines.visits == ["p0"]


async def test_never_means_that_prefill_is_not_asked_for_one_token_either() -> None:
    engines = Scripted(d0=whole("a"))

    await Crossing(engines, P0, D0, rule=Never()).ask(chat(stream=False, max_tokens=1))

    assert engines.visits == ["d0"]


async def test_an_engine_of_both_roles_answers_what_it_was_chosen_to_read() -> None:
    """It has most of the prompt cached, or least to read: another one has neither."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(3)]
    engines = Scripted(**{one.id: whole("a") for one in both})
    crossing = Crossing(engines, *both, rule=Never())

    # They take turns, and the one that is asked is the one whose turn it is.
    for _ in range(6):
        await crossing.ask(chat(stream=False))

    first = engines.visits[:3]
    assert sorted(first) == ["b0", "b1", "b2"]
    assert engines.visits[3:] == first


def test_one_that_serves_prefill_only_now_leaves_the_call_to_its_peer() -> None:
    """And to no engine of another protocol: decode of sglang cannot read a prompt."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    crossing = Crossing(Scripted(), *both, *pair("sglang"), rule=Never())
    for one, role in zip(both, (Role.PREFILL, Role.DECODE), strict=True):
        crossing.endpoints.assign(one.id, frozenset({role}))

    for _ in range(10):
        route = crossing.execution.router.route(chat(), FRESH)
        assert route.answering is not None
        wanted = ("disaggregated", "d0") if route.protocol == "sglang" else ("local", "b1")
        assert (route.path, route.answering.instance.id) == wanted
        for reserved in (route.answering, route.prefill):
            if reserved is not None:
                reserved.end()


def test_an_engine_without_room_for_the_answer_leaves_the_call_to_its_peer() -> None:
    """It was chosen to read the prompt, for which it has room."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(2)]
    crossing = Crossing(Scripted(), *both, rule=Never())
    for one, length in zip(both, (8192, 32768), strict=True):
        crossing.endpoints.mark_up(one.id, ["m"], {"m": length}, strict=True)

    for tokens, expected in ((100, {"b0", "b1"}), (16000, {"b1"})):
        found = set()
        for _ in range(10):
            route = crossing.execution.router.route(chat(max_tokens=tokens), FRESH)
            assert route.answering is not None
            assert route.path == "local"
            found.add(route.answering.instance.id)
            route.answering.end()
        assert found == expected


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("rule", [Always(), UncachedTokensAbove(0)])
def test_the_reader_of_both_roles_that_alone_has_room_has_the_call(
    rule: SplitRule, others: bool
) -> None:
    """Also where it is in a pair as the one that reads alone, and beside longer ones, which are no partners of it."""
    both = replace(P0, id="b0", role=Role.BOTH)
    p1, d1 = (replace(one, id=f"{one.id[0]}1", protocol="lmcache") for one in (P0, D0))
    lengths = {both: 8000, D0: 1000} | ({p1: 1000, d1: 16000} if others else {})
    crossing = Crossing(Scripted(), *lengths, rule=rule)
    for one, length in lengths.items():
        crossing.endpoints.mark_up(one.id, ["m"], {"m": length}, strict=True)
    # Too long for it by estimate, as few texts are.
    call = msgspec.structs.replace(chat(max_tokens=2000), prompt_tokens=3500)

    route = crossing.execution.router.route(call, FRESH)

    assert route.answering is not None
    assert (route.path, route.answering.instance.id) == ("local", "b0")
    assert route.decision is not None
    assert route.decision.reason == NO_ROOM
    route.answering.end()


def test_a_call_that_is_to_leave_a_busy_prefill_does_not_stay_there() -> None:
    assert not Decision(Taken.LOCAL, PREFILL_IS_BUSY).may_stay_at("b0")
    assert Decision(Taken.LOCAL, SHORT_PROMPT).may_stay_at("b0")
    assert Decision(Taken.LOCAL, SHORT_PROMPT, among=("b0", "b1")).may_stay_at("b0")
    assert not Decision(Taken.LOCAL, SHORT_PROMPT, among=("b1",)).may_stay_at("b0")


async def test_another_prefill_answers_when_the_first_fails() -> None:
    engines = Scripted(p0=whole("a"), p1=EngineFailed("500"))
    call = chat(stream=False, max_tokens=1)

    # Prefill engines take turns, and the second's comes first.
    told = await Crossing(engines, P0, P1, D0).ask(call)

    assert engines.visits == ["p1", "p0"]
    assert told.body == json_of(whole("a"))


async def test_each_attempt_has_its_decision() -> None:
    engines = Scripted(p0=prefilled(), p1=EngineFailed("500"), d0=streamed("a"))

    told = await Crossing(engines, P0, P1, D0).ask(chat())

    attempts = told.record.as_json()["attempts"]
    assert [one["decision"]["reason"] for one in attempts] == [ALWAYS, ALWAYS]


async def test_a_decode_that_cannot_prefill_makes_the_decision() -> None:
    engines = Scripted(p0=whole("a"), d0=whole("a"))

    told = await Crossing(engines, *pair("sglang"), rule=Never()).ask(chat(stream=False))

    assert told.record.decisions[1] == Decision(Taken.SPLIT, DECODE_CANNOT_PREFILL)


def json_of(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
