"""Whatever a call runs into, its KV is delivered, let go of, or counted as stranded where it is."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders.base import Leg, Mode
from pdgate.protocols.call import Call, encode, value
from pdgate.protocols.dialects import nixl
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    EngineRejected,
    EngineTooSlow,
    KvExpired,
)
from pdgate.protocols.instance import Instance
from pdgate.scheduling.prefix.index import blocks_of
from tests.support.answers import opening, piece, prefilled, whole
from tests.support.clock import Clock
from tests.support.scripted import (
    D0,
    D1,
    NEVER,
    P0,
    P1,
    After,
    Crossing,
    Script,
    Scripted,
    Turns,
    chat,
)

OK = [b"data: fine\n\n"]


def of(protocol: str, generation: str = "") -> tuple[Instance, Instance]:
    ids = ((0, "engine-p"),) if protocol in ("vllm-mooncake", "tensorrt-llm") else ()
    made = [replace(one, protocol=protocol, generation=generation) for one in (P0, D0)]
    return replace(made[0], engine_ids=ids), made[1]


PROTOCOLS = {
    "nixl": ("vllm-nixl", "", Mode.BATCH),
    "nixl staged": ("vllm-nixl", "", Mode.STAGED),
    "kvt": ("vllm-kvt", "", Mode.BATCH),
    "kvt staged": ("vllm-kvt", "", Mode.STAGED),
    "mooncake a": ("vllm-mooncake", "a", Mode.BATCH),
    "mooncake d": ("vllm-mooncake", "d", Mode.BATCH),
    "mooncake staged": ("vllm-mooncake", "d", Mode.STAGED),
    "neuron": ("neuron", "zmq", Mode.BATCH),
    "sglang": ("sglang", "", Mode.BATCH),
    "offload-p2p": ("offload-p2p", "", Mode.BATCH),
    "tpu": ("tpu", "", Mode.STAGED),
    "mori read": ("mori-io", "read", Mode.STAGED),
    "mori write": ("mori-io", "write", Mode.BATCH),
    "trt": ("tensorrt-llm", "context-first", Mode.STAGED),
    "lmdeploy": ("lmdeploy", "", Mode.STAGED),
    "trt together": ("tensorrt-llm", "generation-first", Mode.BATCH),
}
FREED_BY_DECODE = {"nixl", "nixl staged"}
KEEPS_NOTHING = {"kvt", "sglang"}
FREED_BY_US = {"lmdeploy"}


async def leave(name: str, engines: Scripted, engine: str, *, hears: bool = False) -> Crossing:
    """The client leaves while this engine keeps it waiting."""
    protocol, generation, mode = PROTOCOLS[name]
    crossing = Crossing(engines, *of(protocol, generation), mode=mode, clock=Clock())
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits(engine).wait()
    if hears:
        await crossing.called[0].hears.wait()
    # Prefill's answer, where it is there at once, has been read.
    for _ in range(8):
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    return crossing


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_client_that_leaves_prefill_strands_nothing(name: str) -> None:
    engines = Scripted(p0=NEVER, d0=NEVER)

    crossing = await leave(name, engines, "d0" if name == "kvt" else "p0")

    assert crossing.ledger.stranded() == {}


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_a_client_strands_that_leaves_decode(name: str) -> None:
    """Prefill has answered; decode has not."""
    crossing = await leave(name, Scripted(p0=prefilled(), d0=NEVER), "d0")

    stays = name not in FREED_BY_DECODE | KEEPS_NOTHING | FREED_BY_US
    assert crossing.ledger.stranded() == ({"p0": 1} if stays else {})


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_client_that_leaves_its_answer_strands_nothing(name: str) -> None:
    said: Script = [opening(), piece("a"), NEVER]
    crossing = await leave(name, Scripted(p0=prefilled("a"), d0=said), "d0", hears=True)

    assert crossing.ledger.stranded() == {}


@pytest.mark.parametrize("bad", [EngineFailed("500"), [EngineFailed("cut")]])
async def test_a_decode_that_dies_strands_what_it_was_to_fetch(bad: Script) -> None:
    clock = Clock()
    engines = Scripted(p0=prefilled(), d0=bad)
    crossing = Crossing(engines, P0, D0, clock=clock, max_attempts=1)

    await crossing.ask(chat())

    assert crossing.ledger.stranded() == {"p0": 1}
    clock.now = 30.0
    assert crossing.ledger.stranded() == {}


async def test_a_call_that_is_wrong_strands_nothing_with_nixl() -> None:
    """Decode told prefill within 1.5 s on vLLM 0.32.0."""
    engines = Scripted(p0=prefilled(), d0=EngineRejected(400, (), b""))
    crossing = Crossing(engines, P0, D0)

    await crossing.ask(chat())

    assert crossing.ledger.stranded() == {}


async def test_prefill_that_is_gone_has_nothing_stranded() -> None:
    engines = Scripted(
        p0=Turns(prefilled(), EngineRefused("gone")), d0=Turns(EngineFailed("500"), OK)
    )
    crossing = Crossing(engines, P0, D0)

    assert (await crossing.ask(chat())).body == OK[0]

    assert engines.visits == ["p0", "d0", "p0", "d0"]
    assert crossing.ledger.stranded() == {}


async def begin_at(seconds: float, *, stream: bool = True) -> Crossing:
    """d1 takes the call at once, and begins to answer then."""
    begins, clock = asyncio.Event(), Clock()
    said = OK if stream else [encode(whole("fine"))]
    engines = Scripted(p0=prefilled(), p1=prefilled(), d1=[begins, *said], d0=said)
    crossing = Crossing(engines, P0, P1, D0, D1, clock=clock)
    asking = asyncio.create_task(crossing.ask(chat(stream=stream)))
    await engines.waits("d1").wait()
    clock.now = seconds
    begins.set()
    await asking
    return crossing


async def test_a_decode_that_began_after_the_lease_is_not_believed() -> None:
    """It sat in that engine's queue; what was read may be another prompt's by then."""
    crossing = await begin_at(30.1)

    told = crossing.called[0]
    assert told.body == OK[0]
    assert crossing.engines.visits[1::2] == ["d1", "d0"]
    assert told.record.expired == 1
    assert told.record.legs[1].outcome == KvExpired.code
    assert len(set(crossing.engines.attempt_ids)) == 2


@pytest.mark.parametrize(("seconds", "stream"), [(29.9, True), (60.0, False)])
async def test_a_decode_in_time_or_of_an_unknown_time_is(seconds: float, stream: bool) -> None:
    """Of an answer that is no stream nobody knows when its first token was there."""
    crossing = await begin_at(seconds, stream=stream)

    assert crossing.engines.visits[1::2] == ["d1"]
    assert crossing.called[0].record.expired == 0


async def test_the_only_decode_is_asked_again_and_shares_no_cache_with_what_it_read() -> None:
    """It keeps what it read too late under the prompt's hash, which cache_salt is a part of."""
    begins, clock = asyncio.Event(), Clock()
    engines = Scripted(p0=prefilled(), d0=Turns([begins, *OK], OK))
    crossing = Crossing(engines, P0, D0, clock=clock)
    asking = asyncio.create_task(crossing.ask(chat(cache_salt="own")))
    await engines.waits("d0").wait()
    clock.now = 31.0
    begins.set()

    assert (await asking).body == OK[0]

    assert engines.visits == ["p0", "d0", "p0", "d0"]
    salts = [value(leg.body, "cache_salt") for leg, _ in engines.sent]
    assert salts[:2] == ["own", "own"]
    assert salts[2] == salts[3] != "own"
    assert salts[2].startswith("own-")


def test_nor_is_it_routed_by_what_engines_have_of_the_prompt_as_it_came() -> None:
    """They have none of it, and what they read of it is none of that one's."""
    call = chat(messages=[{"role": "user", "content": "x" * 8000}])
    as_it_came = blocks_of(call)

    salted = nixl.apart(call, "salt")

    assert as_it_came
    assert not set(as_it_came) & set(blocks_of(salted))


async def test_a_decode_that_does_not_begin_is_left_before_the_lease_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it reads nothing that is another prompt's, and keeps nothing of it."""
    clock = Clock()
    engines = Scripted(p0=prefilled(), d0=Turns(EngineTooSlow("nothing came", at="d0"), OK))
    limits: list[float] = []
    opened = engines.open

    def open_(
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> Any:
        if within is not None:
            limits.append(within)
            clock.now += within if len(limits) == 1 else 0.0
        return opened(leg, call, loads=loads, within=within)

    monkeypatch.setattr(engines, "open", open_)
    crossing = Crossing(engines, P0, D0, clock=clock)

    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert limits[0] == pytest.approx(27.0)
    assert told.record.expired == 1


async def test_the_lease_is_what_the_operator_says() -> None:
    begins, clock = asyncio.Event(), Clock()
    engines = Scripted(p0=prefilled(), d0=[begins, *OK])
    crossing = Crossing(engines, P0, D0, clock=clock, lease_seconds=120.0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    clock.now = 100.0
    begins.set()

    assert (await asking).body == OK[0]


async def test_the_prefill_engine_is_not_blamed_for_a_lease() -> None:
    dialled, clock = asyncio.Event(), Clock()
    engines = Scripted(
        p0=prefilled(), p1=prefilled(), d1=After(dialled, EngineRefused("down")), d0=OK
    )
    crossing = Crossing(engines, P0, P1, D0, D1, mode=Mode.STAGED, clock=clock)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d1").wait()
    clock.now = 24.1
    dialled.set()
    told = await asking

    assert told.body == OK[0]
    assert told.record.expired == 1
    # What nobody fetched of the first attempt.
    assert sum(crossing.ledger.stranded().values()) == 1
