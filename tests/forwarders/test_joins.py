"""Pairs of engines that have to be introduced to each other, and KV that the gateway lets go of."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders.base import Leg, Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.joins import REJOIN_SECONDS
from pdgate.forwarders.releases import MOST_AT_ONCE
from pdgate.protocols.call import encode, parse_object, value
from pdgate.protocols.dialects import lmdeploy
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    EngineRejected,
    GatewayError,
)
from tests.support.answers import prefilled
from tests.support.clock import Clock
from tests.support.scripted import (
    D0,
    D1,
    JOINING,
    NEVER,
    P0,
    P1,
    Crossing,
    Scripted,
    Turns,
    chat,
)

OK = [b"data: fine\n\n"]
P0, P1, D0, D1 = (replace(one, protocol="lmdeploy") for one in (P0, P1, D0, D1))
ONE_JOIN = Counter({"engine_info": 2, "p2p_initialize": 2, "p2p_connect": 2})


class Joining(Scripted):
    """
    Attributes:
        says: Engine and word -> what it answers to that, or fails with.
        held: Words wait for it, once it is there.
    """

    def __init__(self, **scripts: Any) -> None:
        super().__init__(**scripts)
        self.says: dict[tuple[str, str], Any] = {}
        self.held: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def ask(self, leg: Leg, call: Any) -> Any:
        word = leg.path.rpartition("/")[2]
        if leg.path.startswith("/distserve/"):
            self.asked.set()
            if self.held is not None:
                await self.held.wait()
        said = self.says.get((leg.to.id, word), JOINING.get(leg.path))
        if said is None:
            return await super().ask(leg, call)
        self.sent.append((leg, call.attempt_id))
        if isinstance(said, GatewayError):
            said.at = leg.to.id
            raise said
        return parse_object(encode(said))

    def words(self, *engines: str) -> Counter[str]:
        """To these engines, or to any."""
        return Counter(
            leg.path.rpartition("/")[2]
            for leg, _ in self.sent
            if leg.path.startswith("/distserve/") and (not engines or leg.to.id in engines)
        )


def freed(engines: Joining) -> list[int]:
    """Sessions that prefill was told it need not keep."""
    return [
        value(leg.body, "remote_session_id") for leg, _ in engines.sent if leg.path == lmdeploy.FREE
    ]


async def released(crossing: Crossing) -> None:
    while under_way := crossing.execution.releases.under_way:
        await asyncio.wait(under_way)


@pytest.mark.parametrize("mode", Mode)
async def test_a_pair_is_joined_once_and_before_decode_is_asked(mode: Mode) -> None:
    engines = Joining(p0=prefilled(), d0=OK)
    crossing = Crossing(engines, P0, D0, mode=mode)

    for _ in range(3):
        assert (await crossing.ask(chat())).body == OK[0]

    assert engines.words() == ONE_JOIN
    paths = [leg.path for leg, _ in engines.sent]
    assert paths.index(lmdeploy.CONNECT) < [leg.to.id for leg, _ in engines.sent].index("d0", 6)


async def test_calls_that_come_together_join_a_pair_once() -> None:
    engines = Joining(p0=prefilled(), d0=OK)
    engines.held = asyncio.Event()
    crossing = Crossing(engines, P0, D0)
    execution = crossing.execution
    calls = [
        asyncio.create_task(execution.joins.joined(_forwarder(crossing), P0, D0, chat()))
        for _ in range(20)
    ]
    await engines.asked.wait()
    engines.held.set()
    await asyncio.wait(calls)

    assert engines.words() == ONE_JOIN


async def test_a_client_that_leaves_while_it_joins_does_not_harm_those_that_wait() -> None:
    engines = Joining(p0=prefilled(), d0=OK)
    engines.held = asyncio.Event()
    crossing = Crossing(engines, P0, D0)
    joins, forwarder = crossing.execution.joins, _forwarder(crossing)
    first = asyncio.create_task(joins.joined(forwarder, P0, D0, chat()))
    await engines.asked.wait()
    second, third = (asyncio.create_task(joins.joined(forwarder, P0, D0, chat())) for _ in range(2))
    await asyncio.sleep(0)
    third.cancel()
    first.cancel()
    engines.held.set()
    await second

    assert third.cancelled()
    assert list(joins.made) == [(P0.id, P0.url, D0.id, D0.url)]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("engine_info", EngineFailed("500")),
        ("engine_info", {"tp_size": 2, "block_size": 16}),
        ("engine_info", {"tp_size": 1, "block_size": 64}),
        ("p2p_initialize", EngineRejected(404, (), b"no such route")),
        ("p2p_initialize", {"status": 2}),
        ("p2p_connect", EngineRefused("gone")),
        ("p2p_connect", {"status": 2}),
    ],
)
@pytest.mark.parametrize("mode", Mode)
async def test_a_join_that_fails_is_that_pairs_failure_and_another_takes_the_call(
    mode: Mode, word: str, said: object
) -> None:
    engines = Joining(p0=prefilled(), p1=prefilled(), d0=OK, d1=OK)
    engines.says["d0", word] = said
    crossing = Crossing(engines, P0, P1, D0, D1, mode=mode)

    for _ in range(2):
        assert (await crossing.ask(chat())).body == OK[0]
    await released(crossing)

    decodes = [leg.to.id for leg, _ in engines.sent if not leg.path.startswith("/dist")]
    assert decodes.count("d1") == 2
    assert "d0" not in decodes
    assert all("d0" not in pair for pair in crossing.execution.joins.made)


async def test_what_a_client_gets_if_no_pair_can_be_joined_names_the_engine() -> None:
    """And not the 404 of a route that it did not ask for."""
    engines = Joining(p0=prefilled(), d0=OK)
    engines.says["p0", "engine_info"] = EngineRejected(404, (), b"")

    told = await Crossing(engines, P0, D0, on_prefill_failure=OnPrefillFailure.RETRY).ask(chat())

    assert told.error is not None
    assert told.error.status == 502
    assert "answered 404 to /distserve/engine_info" in str(told.error)


async def test_a_process_that_is_gone_is_joined_anew_when_it_is_back() -> None:
    engines = Joining(p0=Turns(prefilled(), EngineRefused("gone"), prefilled()), d0=OK)
    crossing = Crossing(engines, P0, D0)

    await crossing.ask(chat())
    await crossing.ask(chat())
    crossing.endpoints.mark_up("p0", ["m"])
    await crossing.ask(chat())

    assert engines.words()["p2p_connect"] == 4


async def test_a_restart_that_nobody_saw_is_joined_anew_but_not_with_each_failure() -> None:
    """Decode fails over KV of an engine that it does not know, and of others."""
    clock = Clock()
    failing = [EngineFailed("who is that") for _ in range(3)]
    engines = Joining(p0=prefilled(), d0=Turns(failing[0], OK, *failing[1:], OK))
    crossing = Crossing(engines, P0, D0, clock=clock)
    crossing.execution.joins._clock = clock

    await crossing.ask(chat())
    assert engines.words()["p2p_connect"] == 2
    clock.now += REJOIN_SECONDS + 1
    await crossing.ask(chat())

    assert engines.words()["p2p_connect"] == 4


@pytest.mark.parametrize("mode", Mode)
async def test_kv_that_decode_did_not_come_for_is_let_go_of(mode: Mode) -> None:
    engines = Joining(p0=prefilled(), d0=Turns(EngineFailed("500"), OK))
    crossing = Crossing(engines, P0, D0, mode=mode)

    assert (await crossing.ask(chat())).body == OK[0]
    await released(crossing)

    first, second = dict.fromkeys(engines.attempt_ids)
    assert freed(engines) == [lmdeploy.session_of(first)]
    assert lmdeploy.session_of(second) != lmdeploy.session_of(first)
    assert crossing.ledger.stranded() == {}


async def test_kv_of_a_client_that_leaves_is_let_go_of() -> None:
    engines = Joining(p0=prefilled(), d0=NEVER)
    crossing = Crossing(engines, P0, D0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    asking.cancel()
    await asyncio.wait((asking,))
    await released(crossing)

    assert len(freed(engines)) == 1


async def test_kv_that_decode_has_is_not_let_go_of_again_when_the_client_leaves() -> None:
    engines = Joining(p0=prefilled(), d0=[b"data: fine\n\n", NEVER])
    crossing = Crossing(engines, P0, D0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    asking.cancel()
    await asyncio.wait((asking,))
    await released(crossing)

    assert freed(engines) == []


async def test_an_answer_that_ended_with_its_first_token_leaves_nothing_at_prefill() -> None:
    """Decode is asked plainly, so it tells prefill nothing."""
    answer = prefilled()
    answer["choices"][0]["finish_reason"] = "stop"
    engines = Joining(p0=answer, d0=OK)
    crossing = Crossing(engines, P0, D0)

    await crossing.ask(chat())
    await released(crossing)

    assert len(freed(engines)) == 1
    (to_decode,) = [leg for leg, _ in engines.sent if leg.to.id == "d0" and "messages" in leg.body]
    assert to_decode.body == chat().body


async def test_what_decode_has_taken_is_not_released_twice() -> None:
    engines = Joining(p0=prefilled(), d0=OK)
    crossing = Crossing(engines, P0, D0)
    await crossing.ask(chat())
    await released(crossing)

    assert freed(engines) == []


async def test_what_cannot_be_released_is_stranded() -> None:
    engines = Joining(p0=prefilled(), d0=EngineFailed("500"))
    engines.says["p0", "free_cache"] = EngineFailed("500")
    crossing = Crossing(engines, P0, D0, max_attempts=1)
    await crossing.ask(chat())
    await released(crossing)

    assert crossing.ledger.stranded() == {"p0": 1}


async def test_a_flood_of_clients_that_leave_sends_no_more_than_so_many_words_at_a_time() -> None:
    engines = Joining(p0=prefilled(), d0=OK)
    engines.held = asyncio.Event()
    crossing = Crossing(engines, P0, D0)
    releases = crossing.execution.releases
    leg = Leg(P0, lmdeploy.FREE, {})
    for _ in range(MOST_AT_ONCE + 10):
        releases.send(leg, chat(), 1e9)

    assert len(releases.under_way) == MOST_AT_ONCE
    assert crossing.ledger.stranded() == {"p0": 10}
    engines.held.set()
    await released(crossing)


@pytest.mark.parametrize(
    "said",
    [
        {"cache_block_ids": None},
        {"cache_block_ids": "all"},
        {"remote_token_ids": []},
        {"remote_token_ids": None},
        {"remote_token_ids": 7},
        {"choices": []},
    ],
)
async def test_an_answer_without_blocks_or_token_is_prefills_failure(said: Any) -> None:
    engines = Joining(p0={**prefilled(), **said}, d0=OK)

    told = await Crossing(engines, P0, D0, max_attempts=1).ask(chat())

    assert isinstance(told.error, EngineFailed)
    assert "prefill" in str(told.error)
    assert told.error.at == "p0"


def _forwarder(crossing: Crossing) -> Any:
    return crossing.execution.router.way_of(P0).hand_off
