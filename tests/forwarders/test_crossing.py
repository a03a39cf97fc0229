"""The order of legs in each pattern, and that one leg never outlives the other's failure."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pdgate.forwarders.base import Mode
from pdgate.protocols.errors import EngineFailed, EngineRejected, NoInstance
from pdgate.protocols.instance import Instance, Role
from tests.support.answers import piece, prefilled, whole
from tests.support.scripted import (
    D0,
    D1,
    NEVER,
    P0,
    P1,
    PATIENCE_SECONDS,
    After,
    Crossing,
    Script,
    Scripted,
    Turns,
    chat,
)

OK = [b"data: fine\n\n"]
PLAIN = Instance("s0", "http://s0", Role.PLAIN, "plain")


def speaking(protocol: str, *records: Instance) -> list[Instance]:
    return [replace(one, protocol=protocol) for one in records]


async def freed(crossing: Crossing, engine: str) -> None:
    """A leg ends within the loop's next turns, and nobody is told when."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while engine in crossing.reserved:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_hand_over_asks_prefill_and_then_decode() -> None:
    asked = asyncio.Event()
    engines = Scripted(p0=After(asked, prefilled()), d0=OK)
    asking = asyncio.create_task(Crossing(engines, P0, D0).ask(chat()))
    await engines.waits("p0").wait()
    assert engines.visits == ["p0"]

    asked.set()

    assert (await asking).body == OK[0]
    assert engines.visits == ["p0", "d0"]


async def test_a_rendezvous_asks_both_at_once() -> None:
    """Each waits for the other, so asking one after the other would wait for ever."""
    engines = Scripted(p0={}, d0=OK)
    engines.scripts = {"p0": After(engines.waits("d0"), {}), "d0": After(engines.waits("p0"), OK)}

    told = await Crossing(engines, *speaking("sglang", P0, D0)).ask(chat())

    assert told.body == OK[0]
    assert sorted(engines.visits) == ["d0", "p0"]


async def test_a_delegation_asks_decode_alone() -> None:
    engines = Scripted(d0=OK)

    told = await Crossing(engines, *speaking("vllm-kvt", P0, D0)).ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["d0"]


@pytest.mark.parametrize("streams", [True, False])
async def test_the_answer_to_a_delegation_shows_that_prefill_works(streams: bool) -> None:
    """Nothing else does: the gateway sends prefill no leg."""
    engines = Scripted(d0=OK if streams else whole("a"))
    crossing = Crossing(engines, *speaking("vllm-kvt", P0, D0))
    prefill = crossing.endpoints.get("p0")
    assert prefill is not None

    assert (await crossing.ask(chat(stream=streams))).error is None
    assert prefill.shown_reads == 1

    engines.scripts["d0"] = EngineFailed("d0 fell")
    assert (await crossing.ask(chat(stream=streams))).error is not None
    assert prefill.shown_reads == 1


async def test_without_a_pair_a_plain_engine_serves() -> None:
    engines = Scripted(s0=OK)

    told = await Crossing(engines, P0, PLAIN).ask(chat())

    assert told.body == OK[0]
    assert told.record.path == "plain"


async def test_batch_reserves_the_pair_before_prefill_is_asked() -> None:
    engines = Scripted(p0=NEVER)
    crossing = Crossing(engines, P0, D0, mode=Mode.BATCH)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p0").wait()

    assert crossing.reserved == {"p0": 1, "d0": 1}
    asking.cancel()


async def test_staged_chooses_decode_when_prefill_has_answered() -> None:
    """From the load of that moment; and prefill no longer counts as busy."""
    asked = asyncio.Event()
    engines = Scripted(p0=After(asked, prefilled()), d0=NEVER)
    crossing = Crossing(engines, P0, D0, mode=Mode.STAGED)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p0").wait()
    assert crossing.reserved == {"p0": 1}

    asked.set()
    await engines.waits("d0").wait()

    assert crossing.reserved == {"d0": 1}
    asking.cancel()


async def test_a_rendezvous_frees_prefill_when_it_has_answered() -> None:
    gate = asyncio.Event()
    engines = Scripted(p0={}, d0=[piece("a"), gate, piece("b")])
    crossing = Crossing(engines, *speaking("sglang", P0, D0))
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()

    await freed(crossing, "p0")

    assert crossing.reserved == {"d0": 1}
    gate.set()

    assert (await asking).body == piece("a") + piece("b")


async def test_a_failed_prefill_ends_the_decode_that_waits_for_it() -> None:
    """Mooncake's decode would wait minutes for blocks that never come."""
    engines = Scripted(p1={}, p0={}, d0=Turns(NEVER, OK))
    engines.scripts["p1"] = After(engines.waits("d0"), EngineFailed("500"))

    told = await Crossing(engines, *speaking("sglang", P0, P1, D0)).ask(chat())

    assert told.body == OK[0]
    assert engines.left_early == ["d0"]
    assert [leg.outcome for leg in told.record.legs[:2]] == ["cancelled", "engine_failed"]


@pytest.mark.parametrize("silent", [[NEVER], [b"data: half", NEVER]])
async def test_it_ends_a_decode_that_has_only_sent_its_head(silent: Script) -> None:
    engines = Scripted(d0=silent)
    engines.scripts["p0"] = After(engines.waits("d0"), EngineRejected(400, (), b"no"))

    told = await Crossing(engines, *speaking("sglang", P0, D0)).ask(chat())

    assert isinstance(told.error, EngineRejected)
    assert engines.left_early == ["d0"]


async def test_a_failed_decode_ends_the_prefill_beside_it() -> None:
    engines = Scripted(p0=Turns(NEVER, {}), d0=OK)
    engines.scripts["d1"] = After(engines.waits("p0"), EngineFailed("500"))

    told = await Crossing(engines, *speaking("sglang", P0, D0, D1)).ask(chat())

    assert told.body == OK[0]
    assert engines.left_early == ["p0"]


async def test_a_prefill_that_fails_late_does_not_spoil_the_answer() -> None:
    """Decode answers, so it has the cache; what prefill says now is of no use."""
    gate = asyncio.Event()
    engines = Scripted(d0=[piece("a"), gate, piece("b")])
    engines.scripts["p0"] = After(engines.waits("d0"), EngineFailed("late"))
    crossing = Crossing(engines, *speaking("sglang", P0, D0))
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    await freed(crossing, "p0")
    gate.set()

    told = await asking

    assert told.body == piece("a") + piece("b")
    assert [leg.outcome for leg in told.record.legs] == ["ok", "engine_failed"]


async def test_prefill_is_left_when_decode_has_said_it_all() -> None:
    engines = Scripted(p0=NEVER, d0=OK)

    told = await Crossing(engines, *speaking("sglang", P0, D0)).ask(chat())

    assert told.body == OK[0]
    assert engines.left_early == ["p0"]


STAGES: dict[str, tuple[str, str, dict[str, Script]]] = {
    "prefilling": ("vllm-nixl", "p0", {"p0": NEVER}),
    "waiting for decode's head": ("vllm-nixl", "d0", {"d0": NEVER}),
    "waiting for the first byte": ("vllm-nixl", "d0", {"d0": [NEVER]}),
    "waiting for the first event": ("vllm-nixl", "d0", {"d0": [b"data: ", NEVER]}),
    "mid-stream": ("vllm-nixl", "d0", {"d0": [piece("a"), NEVER]}),
    "rendezvous, prefilling": ("sglang", "p0", {"p0": NEVER, "d0": NEVER}),
    "rendezvous, mid-stream": ("sglang", "d0", {"p0": NEVER, "d0": [piece("a"), NEVER]}),
    "merging, prefilling": ("neuron", "p0", {"p0": NEVER, "d0": [NEVER]}),
    "merging, mid-stream": ("neuron", "d0", {"p0": whole("a"), "d0": [piece("a"), NEVER]}),
    "delegated": ("vllm-kvt", "d0", {"d0": NEVER}),
}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("protocol", "waited_for", "scripts"), STAGES.values(), ids=STAGES)
async def test_a_client_that_leaves_leaves_nothing_behind(
    mode: Mode, protocol: str, waited_for: str, scripts: dict[str, Script]
) -> None:
    """`ask` sees to it that no reservation and no open answer is left."""
    if mode is Mode.STAGED and protocol in ("sglang", "neuron"):
        mode = Mode.BATCH
    engines = Scripted(p0=prefilled(), d0=OK)
    engines.scripts |= scripts
    crossing = Crossing(engines, *speaking(protocol, P0, D0), mode=mode)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits(waited_for).wait()
    assert crossing.reserved

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert crossing.reserved == {}
    assert waited_for in engines.left_early
    assert all(leg.outcome in ("ok", "cancelled") for leg in crossing.called[0].record.legs)


async def test_a_client_that_leaves_between_the_legs_starts_no_decode() -> None:
    asked = asyncio.Event()
    engines = Scripted(p0=After(asked, prefilled()), d0=OK)
    crossing = Crossing(engines, P0, D0, mode=Mode.STAGED)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p0").wait()

    asked.set()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert engines.visits == ["p0"]


@pytest.mark.parametrize("turns", range(4))
async def test_a_client_that_leaves_as_prefill_fails_is_not_served_again(turns: int) -> None:
    """A task group that fails swallows a cancellation of the same moment (before Python 3.13)."""
    gate = asyncio.Event()
    engines = Scripted(p0=After(gate, EngineFailed("500")), p1={}, d0=NEVER)
    crossing = Crossing(engines, *speaking("sglang", P1, P0, D0))
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p0").wait()

    gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asking


async def test_nobody_up_is_said_without_asking_anybody() -> None:
    engines = Scripted()
    crossing = Crossing(engines, P0, D0, mode=Mode.STAGED)
    crossing.endpoints.mark_down("d0")

    told = await crossing.ask(chat())

    assert isinstance(told.error, NoInstance)
    assert engines.visits == []


@pytest.mark.parametrize("mistake", [RuntimeError("bug"), KeyError("bug")])
@pytest.mark.parametrize("protocol", ["vllm-nixl", "sglang"])
async def test_a_bug_is_neither_retried_nor_hidden(
    protocol: str, mistake: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not wrapped in a group, where the log would not find it."""
    engines = Scripted(p0=prefilled(), d0=OK)
    crossing = Crossing(engines, *speaking(protocol, P0, D0))

    def fail(*_: object, **__: object) -> Callable[[], object]:
        raise mistake

    monkeypatch.setattr(engines, "open", fail)

    with pytest.raises(type(mistake), match="bug"):
        await crossing.ask(chat())
    assert crossing.reserved == {}


@pytest.mark.parametrize("mode", Mode)
async def test_a_forwarder_without_a_way_is_a_bug_that_is_named(mode: Mode) -> None:
    """ "plain" cannot cross two engines, whatever the fleet says."""
    crossing = Crossing(Scripted(), *speaking("plain", P0, D0), mode=mode)

    with pytest.raises(TypeError, match=r"plain (has no way to cross|cannot choose decode)"):
        await crossing.ask(chat())
    assert crossing.reserved == {}
