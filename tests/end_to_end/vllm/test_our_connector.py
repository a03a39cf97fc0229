"""PdgateConnector over each of our backends, and what must not hurt more than one request.

The pair over tcp goes through all tests of this folder; the others through these.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest
from openai import APIStatusError, APITimeoutError, InternalServerError

from tests.end_to_end.vllm.asking import GREEDY, client, complete, prompt
from tests.end_to_end.vllm.by_hand import Left, asking, decode, prefill
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import (
    BLOCK,
    LEASE_SECONDS,
    PDGATE_MOONCAKE,
    PDGATE_SHM,
    Engine,
    Fleet,
    Pair,
    Transfer,
)
from tests.end_to_end.vllm.gateway import MODES, Gateway, gateway_over
from tests.end_to_end.vllm.isolation import isolated
from tests.end_to_end.vllm.metrics import Prompts, held_share, metric, running, settles
from tests.support.processes import Child, answers_200

BLOCK_BYTES = 2 * 2 * 2 * BLOCK * 32 * 4
"""Of the model that make_model.py makes: layers, K and V, KV heads, tokens, head size, float32."""

lengths = pytest.mark.parametrize("length", [5, BLOCK + 1, 700])


# A pair takes half a minute to start: what does not depend on the backend is tried on one.
on_one = pytest.mark.parametrize("ours", [PDGATE_SHM], indirect=True, ids=lambda it: it.name)


@pytest.fixture(scope="module", params=[PDGATE_SHM, PDGATE_MOONCAKE], ids=lambda it: it.name)
def ours(
    request: pytest.FixtureRequest, fleet: Fleet, starting_alone: tuple[Child, int]
) -> Iterator[Pair]:
    transfer: Transfer = request.param
    isolated(transfer)
    with ExitStack() as stack:
        yield Pair(fleet, transfer, stack)


@pytest.fixture(scope="module")
def our_gateways(fleet: Fleet, ours: Pair) -> Iterator[Mapping[str, Gateway]]:
    with ExitStack() as stack:
        yield {mode: stack.enter_context(gateway_over(ours, mode, fleet.logs)) for mode in MODES}


@lengths
@pytest.mark.parametrize("mode", MODES)
def test_a_completion_equals_that_of_one_engine(
    mode: str, length: int, alone: Engine, ours: Pair, our_gateways: Mapping[str, Gateway]
) -> None:
    asked = prompt(length, f"{ours.transfer.name} {mode} {length}")
    gateway = our_gateways[mode]
    before = Prompts.of(ours.decode)

    with client(gateway.url) as through, client(alone.url) as reference:
        said = complete(through, asked)
        expected = complete(reference, asked)

    assert said.answer == expected.answer
    crossed(said, before, ours, gateway)


def test_calls_at_once_do_not_mix(
    alone: Engine, ours: Pair, our_gateways: Mapping[str, Gateway]
) -> None:
    prompts = [prompt(40 + 50 * i, f"{ours.transfer.name} at once {i}") for i in range(8)]

    with (
        client(our_gateways["batch"].url) as through,
        client(alone.url) as reference,
        ThreadPoolExecutor(len(prompts)) as at_once,
    ):
        said = list(at_once.map(lambda asked: complete(through, asked).token_ids, prompts))
        expected = [complete(reference, asked).token_ids for asked in prompts]

    assert said == expected
    nothing_is_held(ours)


@on_one
def test_what_was_moved_is_counted(ours: Pair) -> None:
    before = {name: metric(ours.decode, f"vllm:pdgate_{name}_total") for name in COUNTED}

    delegate(ours, prompt(3 * BLOCK + 2, f"{ours.transfer.name} counted"))

    def counted() -> bool:
        grown = {n: metric(ours.decode, f"vllm:pdgate_{n}_total") - before[n] for n in COUNTED}
        return grown == {"bytes": 4 * BLOCK_BYTES, "transfers": 1, "failed": 0}

    assert settles(counted)
    assert metric(ours.decode, "vllm:pdgate_seconds_total") > 0


COUNTED = ("bytes", "transfers", "failed")

BAD: list[dict[str, Any]] = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "remote_host": None, "remote_port": 1},
    {"do_remote_prefill": [{}], "remote_host": {"a": []}, "remote_port": "x"},
    {"remote_host": "127.0.0.1", "remote_port": 0},
    {"remote_host": "127.0.0.1", "remote_port": 1},
    {"remote_host": "no.such.host.invalid", "remote_port": 28000},
    {"do_remote_decode": True},
    {"do_remote_decode": {"x": 1}, "do_remote_prefill": True},
    {"do_remote_decode": True, "pdgate_prefill": "kvt-forged"},
    {"do_remote_decode": True, "pdgate_prefill": ["forged"]},
]


@on_one
@pytest.mark.parametrize("params", BAD, ids=str)
def test_a_bad_request_hurts_nobody_else(params: dict[str, Any], alone: Engine, ours: Pair) -> None:
    """It fails, or is computed where it is; stock connectors lose the engine to some of these."""
    asked = prompt(70, f"{ours.transfer.name} bad {params}")
    with client(alone.url) as reference:
        expected = complete(reference, asked).token_ids

    for engine in (ours.prefill, ours.decode):
        with client(engine.url) as direct:
            said = outcome(direct, asked, params)
            assert said in (500, expected)

    assert delegate(ours, asked).token_ids == expected
    nothing_is_held(ours)


@on_one
def test_a_call_of_an_unknown_id_fails(ours: Pair) -> None:
    asked = prompt(70, f"{ours.transfer.name} unknown")
    left = Left({"do_remote_prefill": True, **asking(ours)}, "nobody-prefilled-this")

    with pytest.raises(InternalServerError):
        decode(ours, asked, left)

    nothing_is_held(ours)


@on_one
def test_what_nobody_fetches_is_given_back(ours: Pair) -> None:
    expired = metric(ours.prefill, "vllm:pdgate_expired_total")

    left = prefill(ours, prompt(100, f"{ours.transfer.name} unfetched"))

    assert settles(lambda: held_share(ours.prefill) == 0, LEASE_SECONDS + 10)
    assert settles(lambda: metric(ours.prefill, "vllm:pdgate_expired_total") == expired + 1)
    with pytest.raises(InternalServerError):
        decode(ours, prompt(100, f"{ours.transfer.name} unfetched"), left)


@on_one
def test_a_client_that_leaves_while_prefill_hangs_frees_decode(ours: Pair) -> None:
    asked = prompt(300, f"{ours.transfer.name} leaves early")
    ours.prefill.process.signal(SIGSTOP)
    try:
        with pytest.raises(APITimeoutError), client(ours.decode.url) as direct:
            ask(direct.with_options(timeout=1.0), asked, asking(ours))
        assert settles(lambda: running(ours.decode) == 0)
    finally:
        ours.prefill.process.signal(SIGCONT)

    nothing_is_held(ours, LEASE_SECONDS + 20)
    delegate(ours, asked)


@on_one
def test_prefill_killed_in_the_middle_fails_one_call_and_can_come_back(
    alone: Engine, ours: Pair
) -> None:
    """Last, because it takes half a minute to start another. Frozen first, so that the call waits."""
    asked = prompt(300, f"{ours.transfer.name} killed")
    ours.prefill.process.signal(SIGSTOP)

    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(delegate, ours, asked)
        assert settles(lambda: held_share(ours.decode) > 0)
        ours.prefill.process.signal(SIGKILL)
        with pytest.raises(InternalServerError):
            waiting.result(LEASE_SECONDS * 3)

    assert settles(lambda: held_share(ours.decode) == 0)
    ours.restart_prefill()
    with client(alone.url) as reference:
        assert delegate(ours, asked).token_ids == complete(reference, asked).token_ids
    nothing_is_held(ours)


def delegate(pair: Pair, tokens: list[int]) -> Any:
    """One request to D, which has P compute the prompt."""
    with client(pair.decode.url) as direct:
        return ask(direct, tokens, asking(pair))


def outcome(direct: Any, tokens: list[int], params: Mapping[str, Any]) -> Any:
    """The tokens, or the status of the refusal."""
    try:
        return ask(direct, tokens, params).token_ids
    except APIStatusError as error:
        return error.status_code


def ask(direct: Any, tokens: list[int], params: Mapping[str, Any]) -> Any:
    extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
    return complete(direct, tokens, extra_body=extra)


def nothing_is_held(pair: Pair, seconds: float = LEASE_SECONDS + 10) -> None:
    for engine in (pair.prefill, pair.decode):
        assert settles(lambda engine=engine: held_share(engine) == 0, seconds)  # type: ignore[misc]
        assert answers_200(f"{engine.url}/health")
