"""Peers' policies choose as their sources say, and what is found is written where it was."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pdgate.protocols.instance import Role
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from tests.support.fleets import Known, fleet, prompt

pytestmark = pytest.mark.source

Made = Callable[..., Policy]


@pytest.fixture
def made() -> Made:
    from benchmarks.peers import load_any

    def by_name(name: str, known: Known | None = None, role: Role = Role.PREFILL) -> Policy:
        return load_any(name, PolicyContext(role, known or Known({}), random=Random(0)))

    return by_name


def test_cache_aware_follows_a_prefix_of_more_than_its_threshold(made: Made) -> None:
    among = fleet(3)
    among[0].calls = 60

    assert made("cache_aware", Known({"0": 310})).choose(prompt(1000), among) is among[0]
    assert made("cache_aware", Known({"0": 300})).choose(prompt(1000), among) is among[1]


def test_cache_aware_goes_by_load_where_loads_differ_much(made: Made) -> None:
    among = fleet(2)
    among[0].calls = 65

    assert made("cache_aware", Known({"0": 900})).choose(prompt(1000), among) is among[1]


def test_dynamo_adds_what_is_to_be_read_and_what_is_held(made: Made) -> None:
    among = fleet(2)
    # 900 cached against 400 more to read and 400 more held.
    among[0].unread_tokens = among[0].tokens = 400
    assert made("dynamo", Known({"0": 900})).choose(prompt(1000), among) is among[0]

    among[0].unread_tokens = among[0].tokens = 500
    assert made("dynamo", Known({"0": 900})).choose(prompt(1000), among) is among[1]


def test_dynamo_decodes_where_least_is_held(made: Made) -> None:
    among = fleet(2, Role.DECODE)
    among[0].tokens = 10

    assert made("dynamo", Known({"0": 900}), Role.DECODE).choose(prompt(1000), among) is among[1]


def test_softmax_prefers_less_cost_without_always_taking_it(made: Made) -> None:
    among, policy = fleet(2), made("dynamo_softmax")
    among[0].tokens = 1000

    chosen = [policy.choose(prompt(1000), among) is among[1] for _ in range(200)]

    # exp(-1 / 0.5) of the chances go the other way: about 12 %.
    assert 150 < sum(chosen) < 200


def test_llm_d_weighs_prefixes_against_queues(made: Made) -> None:
    among = fleet(2)
    among[0].calls = 10

    assert made("llm_d_pd", Known({"0": 600})).choose(prompt(1000), among) is among[0]
    assert made("llm_d_pd", Known({"0": 400})).choose(prompt(1000), among) is among[1]


def test_ours_are_found_by_the_same_name(made: Made) -> None:
    assert type(made("round_robin")).__name__ == "RoundRobin"


def test_calls_wait_in_the_gateway_for_the_targets_with_the_default_policy_alone() -> None:
    from benchmarks.policies.measure import AT_ENGINES, plan_of

    assert plan_of("slo").limits.any
    assert plan_of(AT_ENGINES).prefill_policy == "slo"
    assert not plan_of(AT_ENGINES).limits.any
    assert not plan_of("lmetric").limits.any


def test_a_part_of_results_is_replaced_and_others_stay(tmp_path: Path) -> None:
    from benchmarks.policies.report import HEADING, put

    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\n## Other\n\nfirst\n")

    put(path, f"{HEADING}\n\nold\n")
    path.write_text(path.read_text() + "\n## Later\n\nlast\n")
    put(path, f"{HEADING}\n\nnew\n")

    assert path.read_text() == (
        f"# Results\n\n## Other\n\nfirst\n\n{HEADING}\n\nnew\n\n## Later\n\nlast\n"
    )


def test_a_piece_of_the_trace_has_a_page_for_each_block() -> None:
    """So what engines find of a prompt is what the simulator finds."""
    from benchmarks.simulation_validation.piece import PAGE_TOKENS, piece
    from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall

    asks = [
        TraceCall(at, 3 * BLOCK_TOKENS + 64, 400, (11, 22, last)) for at, last in ((0, 33), (9, 44))
    ]
    one, other = piece(asks, 2, per_second=2.0)

    assert len(one.prompt) == 3 * PAGE_TOKENS + 2
    assert one.prompt[: 2 * PAGE_TOKENS] == other.prompt[: 2 * PAGE_TOKENS]
    assert one.prompt[2 * PAGE_TOKENS :] != other.prompt[2 * PAGE_TOKENS :]
    assert other.ask.at == 0.5
