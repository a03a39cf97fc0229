"""PdgateConnector as a child of vLLM's MultiConnector, beside one that keeps KV in a folder.

    P, D    MultiConnector -> PdgateConnector, then ExampleConnector (which runs on a CPU, as OffloadingConnector does not)

OffloadingConnector takes the second place on a GPU (docs/operations/kv-tiers.md). What a child must keep is the same: it is asked
after the first one, told of each request and each step, and its answers, events and counts go beside ours.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import BLOCK, PDGATE_TCP, Engine, Fleet, Pair, Transfer
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import Counted, Prompts, settles
from tests.support.processes import answers_200


def beside_a_folder(folder: Path) -> Transfer:
    def connector(api_port: int, kv_port: int) -> dict[str, Any]:
        ours = PDGATE_TCP.connector(api_port, kv_port)
        example = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        }
        return {
            "kv_connector": "MultiConnector",
            "kv_connector_extra_config": {"connectors": [{**ours, "kv_role": "kv_both"}, example]},
        }

    return replace(PDGATE_TCP, name="pdgate-in-multi", connector=connector)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("example-connector")


@pytest.fixture(scope="module")
def multi(fleet: Fleet, folder: Path, starting_alone: object) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(fleet, beside_a_folder(folder), stack)


@pytest.fixture(scope="module")
def gateways(fleet: Fleet, multi: Pair) -> Iterator[Mapping[str, Gateway]]:
    with ExitStack() as stack:
        yield {
            protocol: stack.enter_context(gateway_over(multi, "batch", fleet.logs, protocol))
            for protocol in ("vllm-kvt", "vllm-nixl")
        }


@pytest.mark.parametrize("protocol", ["vllm-kvt", "vllm-nixl"], ids=["kvt", "nixl"])
@pytest.mark.parametrize("length", [BLOCK + 1, 700])
def test_a_call_crosses_and_equals_that_of_one_engine(
    protocol: str, length: int, alone: Engine, multi: Pair, gateways: Mapping[str, Gateway]
) -> None:
    asked = prompt(length, f"in multi {protocol} {length}")
    before = Prompts.of(multi.decode)

    with client(gateways[protocol].url) as through, client(alone.url) as reference:
        said = complete(through, asked)
        expected = complete(reference, asked)

    assert said.answer == expected.answer
    crossed(said, before, multi, gateways[protocol])


def test_what_one_child_counts_is_shown_beside_the_other(
    multi: Pair, gateways: Mapping[str, Gateway]
) -> None:
    """vLLM's API server takes a child's counts by its class's name, and ends where it knows none of that name."""
    before = Counted.by(multi.decode)

    with client(gateways["vllm-kvt"].url) as through:
        complete(through, prompt(3 * BLOCK + 2, "in multi counted"))

    assert settles(lambda: (Counted.by(multi.decode) - before).transfers == 1)
    for engine in (multi.prefill, multi.decode):
        assert answers_200(f"{engine.url}/health")


def test_the_other_child_gives_what_it_has_where_nothing_is_handed_over(
    alone: Engine, multi: Pair, folder: Path
) -> None:
    """Asked past the gateway: P writes the folder, and D reads it."""
    asked = prompt(200, "in multi, by the folder")
    with client(multi.prefill.url) as first, client(alone.url) as reference:
        expected = complete(reference, asked)
        assert complete(first, asked).token_ids == expected.token_ids
    assert any(folder.iterdir())
    before = Prompts.of(multi.decode)

    with client(multi.decode.url) as second:
        assert complete(second, asked).token_ids == expected.token_ids

    assert settles(lambda: (Prompts.of(multi.decode) - before).transferred > 0)
