"""`pdgate plan`: how many engines of each side a load takes."""

import json
from random import Random

from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.lab.simulator.bound.needs import needs
from pdgate.lab.simulator.planning import planned
from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.policy_context import Targets

TARGETS = Targets(5.0, 0.025)
BASE = WorldPlan(targets=TARGETS, limits=Limits.of({}, TARGETS, TARGETS))


def test_it_is_enough_and_one_engine_less_of_either_side_is_not() -> None:
    asks = faster(conversations(300, 3.4, Random(4)), 2)

    found = planned(BASE, asks, wanted=0.95, most=16)

    assert found.enough is not None
    ran = run(WorldPlan("slo", "slo", found.enough.prefills, found.enough.decodes, targets=TARGETS,
                   limits=BASE.limits), asks)  # fmt: skip
    good = sum(outcome.good(TARGETS) for outcome in ran.outcomes)
    assert good >= 0.95 * len(needs(BASE, asks))
    tried = {(one.prefills, one.decodes): one.in_time for one in found.tried}
    for less in ((1, 0), (0, 1)):
        fewer = (found.enough.prefills - less[0], found.enough.decodes - less[1])
        assert tried.get(fewer, 0.0) < 0.95
    assert "with one" in found.reason()


def test_long_answers_take_decode_and_long_prompts_prefill() -> None:
    chats = [TraceCall(n / 60, 200, 600, ()) for n in range(900)]
    documents = [TraceCall(n / 4, 15_000, 20, ()) for n in range(100)]

    of_chats, of_documents = (planned(BASE, asks, 0.95, 16).enough for asks in (chats, documents))

    assert of_chats is not None
    assert of_documents is not None
    assert of_chats.decodes >= 2 * of_chats.prefills
    assert of_documents.prefills >= 3 * of_documents.decodes


def test_too_few_engines_are_said_with_what_they_can_do() -> None:
    few = ("plan", "--calls", "100", "--scale", "30", "--most", "1", "--json")

    result = CliRunner().invoke(app, few)

    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["enough"] is None
    assert said["prefill_load"] > 1
    assert "with 1 and 1" in said["reason"]


def test_a_target_that_no_engine_can_keep_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ("plan", "--calls", "50", "--tpot-target", "0.001"))

    assert result.exit_code == 2
    assert "no call is short enough" in result.stderr
