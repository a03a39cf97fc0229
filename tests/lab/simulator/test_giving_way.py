"""Calls that give way in the simulation, by the decision of the gateway."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.lab.simulator.fleet import Outage
from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.summary import summary
from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import TraceCall, in_batches
from pdgate.lab.simulator.world import Ran, WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.policy_context import Targets

TARGETS = Targets(ttft_seconds=1.0, tpot_seconds=0.1)
BATCHES = [TraceCall(0.0, 1000, 2000, (), urgency=7) for _ in range(2)]
URGENT = [TraceCall(5.0, 1000, 10, ()), TraceCall(5.0, 1000, 10, ())]


def ran(asks: Sequence[TraceCall], give_way: int, **more: Any) -> Ran:
    limits = Limits(decode_concurrency=1, give_way=give_way, wait_seconds=1e6).in_gateway(TARGETS)
    plan = WorldPlan(prefills=2, decodes=2, targets=TARGETS, limits=limits)
    return run(replace(plan, **more), asks)


def test_batches_give_way_to_urgent_calls_and_go_on_where_they_were() -> None:
    before, after = ran([*BATCHES, *URGENT], 0), ran([*BATCHES, *URGENT], 1)

    assert [one.gave_way for one in after.outcomes] == [1, 1, 0, 0]
    assert {one.why for one in after.outcomes} == {""}
    assert min(one.ttft or 0.0 for one in before.outcomes[2:]) > 10
    assert max(one.ttft or 0.0 for one in after.outcomes[2:]) < 1
    # What had been said is not said again: a batch loses what it waits for, and what it reads again.
    for was, now in zip(before.outcomes[:2], after.outcomes[:2], strict=True):
        assert was.first == now.first
        assert was.ended is not None
        assert now.ended is not None
        assert was.ended < now.ended < was.ended + 2


def test_a_batch_gives_way_as_often_as_it_may() -> None:
    urgent = [TraceCall(5.0 * n, 1000, 10, ()) for n in range(1, 4)]
    for times in (1, 2):
        assert [one.gave_way for one in ran([*BATCHES[:1], *urgent], times, decodes=1).outcomes] == [
            times, 0, 0, 0,
        ]  # fmt: skip


def test_what_is_ordinary_or_in_time_ends_nothing() -> None:
    ordinary = [replace(one, urgency=3) for one in BATCHES]
    short = [replace(one, answer_tokens=20) for one in BATCHES]

    assert summary(ran([*ordinary, *URGENT], 3)).gave_way == 0
    assert summary(ran([*short, *URGENT], 3)).gave_way == 0


@pytest.mark.parametrize("kind", ["reading", "answering"])
def test_every_call_is_answered_whole_whatever_gives_way(kind: str) -> None:
    asks = in_batches(conversations(150, 3.0, Random(5)), 0.5, Random(1))
    reads = Limits(prefill_seconds=0.5, give_way=3, wait_seconds=1e6)
    answers = Limits(decode_concurrency=4, give_way=3, wait_seconds=1e6)
    limits = (reads if kind == "reading" else answers).in_gateway(TARGETS)
    plan = WorldPlan(prefills=1, decodes=1, targets=TARGETS, limits=limits)

    found = run(plan, asks)

    assert {one.why for one in found.outcomes} == {""}
    figures = summary(found)
    assert figures.gave_way > 0
    assert max(one.gave_way for one in found.outcomes) <= 3
    assert sum(one.calls for one in figures.by_urgency.values()) == len(asks)
    assert figures.lost == {}


def test_an_engine_that_dies_while_calls_wait_costs_them_nothing() -> None:
    hardware = PRESETS["8b"]
    found = ran([*BATCHES, *URGENT], 1, outages=[Outage("d0", 5.05, 6.0)], hardware=hardware)

    assert {one.why for one in found.outcomes[:2]} == {""}


def test_the_command_says_it_for_each_urgency() -> None:
    words = "--shape chats --batch-share 0.5 --give-way 2 --decode-concurrency 6 --calls 150"
    more = "--prefills 1 --decodes 1 --max-wait 100000"
    said = CliRunner().invoke(app, ["simulate", *words.split(), *more.split()])

    assert said.exit_code == 0, said.output
    assert "priority 3" in said.output
    assert "priority 7" in said.output
