"""Data-parallel ranks of stock vLLM: two behind each URL, of which the gateway makes an instance each (`dp=2`)."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.end_to_end.vllm.asking import Said, client, complete, prompt
from tests.end_to_end.vllm.engines import NIXL, Engine, Fleet, Transfer, ready
from tests.end_to_end.vllm.gateway import MODES, UNWATCHED, Gateway, gateway_over
from tests.end_to_end.vllm.metrics import Prompts, held_share, metric, settles
from tests.support.ports import free_port

RANKS = 2
CALLS = 8
BOTH = ("--data-parallel-size", str(RANKS))


@dataclass(frozen=True, slots=True)
class RankedPair:
    prefill: Engine
    decode: Engine
    transfer: Transfer = NIXL

    @property
    def serve(self) -> list[str]:
        instances = [
            f"role={role},url={engine.url},dp={RANKS}"
            for role, engine in (("prefill", self.prefill), ("decode", self.decode))
        ]
        return [word for each in instances for word in ("--instance", each)]


@pytest.fixture(scope="module")
def ranked(fleet: Fleet, starting_alone: object) -> Iterator[RankedPair]:
    with ExitStack() as stack:
        starting = []
        for name, role in (("p", "kv_producer"), ("d", "kv_consumer")):
            port, kv_port = free_port(), free_port()
            flags, env = (*NIXL.flags(role, port, kv_port), *BOTH), NIXL.env(kv_port)
            starting.append((fleet.start(stack, f"ranked-{name}", port, flags, env), port))
        prefill, decode = (ready(process, port) for process, port in starting)
        yield RankedPair(prefill, decode)


@pytest.fixture(scope="module", params=MODES)
def gateway(request: pytest.FixtureRequest, fleet: Fleet, ranked: RankedPair) -> Iterator[Gateway]:
    flags = (*UNWATCHED, "--prefill-policy", "round_robin", "--decode-policy", "round_robin")
    with gateway_over(ranked, request.param, fleet.logs, flags=flags) as gateway:
        yield gateway


def served(ranked: RankedPair) -> list[float]:
    """Calls that each rank has ended."""
    name = "vllm:request_success_total"
    engines = (ranked.prefill, ranked.decode)
    return [metric(engine, name, engine=str(rank)) for engine in engines for rank in range(RANKS)]


def test_each_rank_has_its_share_and_answers_are_those_of_one_engine(
    ranked: RankedPair, gateway: Gateway, alone: Engine
) -> None:
    asked = [prompt(150, f"rank {gateway.mode} {number}") for number in range(CALLS)]
    before, ranks_before = Prompts.of(ranked.decode), served(ranked)
    with client(gateway.url) as http, client(alone.url) as direct:
        said: list[Said] = []
        for number, each in enumerate(asked):
            said.append(complete(http, each, stream=number % 2 == 1))
            assert said[-1].answer == complete(direct, each).answer

    records = [gateway.record(each.call_id) for each in said]
    assert {(one["path"], one["kv"]) for one in records} == {("disaggregated", "handed_over")}
    legs = [leg for one in records for attempt in one["attempts"] for leg in attempt["legs"]]
    assert len({leg["instance"] for leg in legs}) == 2 * RANKS, legs

    def accounted() -> bool:
        grew = Prompts.of(ranked.decode) - before
        return grew.transferred + grew.cached == CALLS * 150

    assert settles(accounted), Prompts.of(ranked.decode) - before
    assert settles(lambda: held_share(ranked.prefill) == 0), "P still holds blocks"
    # By their own word, too.
    wanted = [then + CALLS / RANKS for then in ranks_before]
    assert settles(lambda: served(ranked) == wanted), (served(ranked), wanted)
