"""PdgateConnector in each of its modes, by each way through the gateway, over each backend.

    vllm-kvt batch     D asks P for the prefill; moved as both engines' mode says
    vllm-kvt staged    P has computed it already: a push after prefill, or a pull
    vllm-nixl          P answers where its blocks are, and D reads them

The pair over tcp that pushes layer by layer goes through all other tests of this folder.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import BLOCK, Engine, Fleet, Pair
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import Prompts, held_share, settles

WAYS = [("vllm-kvt", "batch"), ("vllm-kvt", "staged"), ("vllm-nixl", "batch")]

Gateways = Mapping[tuple[str, str], Gateway]


@pytest.fixture(scope="module")
def gateways(fleet: Fleet, ours: Pair) -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield {
            (protocol, mode): stack.enter_context(gateway_over(ours, mode, fleet.logs, protocol))
            for protocol, mode in WAYS
        }


@pytest.mark.parametrize("length", [5, BLOCK + 1, 700])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_completion_equals_that_of_one_engine(
    way: tuple[str, str], length: int, alone: Engine, ours: Pair, gateways: Gateways
) -> None:
    asked = prompt(length, f"{ours.transfer.name} {way} {length}")
    gateway = gateways[way]
    before = Prompts.of(ours.decode)

    with client(gateway.url) as through, client(alone.url) as reference:
        said = complete(through, asked)
        expected = complete(reference, asked)

    assert said.answer == expected.answer
    crossed(said, before, ours, gateway)


def test_calls_at_once_by_all_ways_do_not_mix(
    alone: Engine, ours: Pair, gateways: Gateways
) -> None:
    asked = [
        (way, prompt(40 + 50 * i, f"{ours.transfer.name} at once {i} {way}"))
        for i in range(4)
        for way in WAYS
    ]

    def ask(one: tuple[tuple[str, str], list[int]]) -> list[int]:
        way, tokens = one
        with client(gateways[way].url) as through:
            return complete(through, tokens).token_ids

    with client(alone.url) as reference, ThreadPoolExecutor(len(asked)) as at_once:
        said = list(at_once.map(ask, asked))
        expected = [complete(reference, tokens).token_ids for _, tokens in asked]

    assert said == expected
    for engine in (ours.prefill, ours.decode):
        assert settles(lambda engine=engine: held_share(engine) == 0)  # type: ignore[misc]
