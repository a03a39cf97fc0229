"""What must not hurt more than one request of PdgateConnector's, and what it counts."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest
from openai import APITimeoutError, BadRequestError, InternalServerError

from pdgate.engine.vllm.metrics import COUNTERS, GAUGES, PREFIX
from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete, prompt
from tests.end_to_end.vllm.by_hand import Left, asking, decode, prefill, prefill_by_nixl
from tests.end_to_end.vllm.engines import BLOCK, LEASE_SECONDS, PDGATE_SHM, Engine, Pair
from tests.end_to_end.vllm.metrics import (
    Counted,
    held_share,
    metric,
    names_of_metrics,
    running,
    settles,
)
from tests.support.processes import answers_200

BLOCK_BYTES = 2 * 2 * 2 * BLOCK * 32 * 4
"""Of the model that make_model.py makes: layers, K and V, KV heads, tokens, head size, float32."""


# Nothing in here depends on the backend.
pytestmark = pytest.mark.parametrize("ours", [PDGATE_SHM], indirect=True, ids=lambda it: it.name)


def test_what_was_moved_is_counted(ours: Pair) -> None:
    before = Counted.by(ours.decode)

    delegate(ours, prompt(3 * BLOCK + 2, f"{ours.transfer.name} counted"))

    assert settles(lambda: Counted.by(ours.decode) != before)
    grown = Counted.by(ours.decode) - before
    assert (grown.bytes, grown.transfers, grown.failed) == (4 * BLOCK_BYTES, 1, 0)
    assert grown.seconds > 0


def test_each_engine_shows_all_of_the_metrics(ours: Pair) -> None:
    for engine in (ours.prefill, ours.decode):
        names = [*(f"{name}_total" for name in COUNTERS), *GAUGES]
        shown = names_of_metrics(engine)
        assert {f"{PREFIX}{name}" for name in names} <= shown


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


@pytest.mark.parametrize("params", BAD, ids=str)
def test_a_bad_request_hurts_nobody_else(params: dict[str, Any], alone: Engine, ours: Pair) -> None:
    """It fails, or is computed where it is; stock connectors lose the engine to some of these."""
    asked = prompt(70, f"{ours.transfer.name} bad {params}")
    with client(alone.url) as reference:
        expected = complete(reference, asked).token_ids

    for engine in (ours.prefill, ours.decode):
        with client(engine.url) as direct:
            said = outcome(direct, asked, params)
            assert said in ("refused", expected)

    assert delegate(ours, asked).token_ids == expected
    nothing_is_held(ours)


def test_a_call_of_an_unknown_id_fails(ours: Pair) -> None:
    asked = prompt(70, f"{ours.transfer.name} unknown")
    failed = Counted.by(ours.decode).failed

    said = decode(ours, asked, unknown(ours))

    assert (said.finish_reason, said.token_ids) == ("abort", [])
    assert settles(lambda: Counted.by(ours.decode).failed == failed + 1)
    nothing_is_held(ours)


def test_a_pull_of_an_unknown_id_fails(ours: Pair) -> None:
    """As vllm-nixl has it: vLLM's own 500, which names no cause."""
    asked = prompt(70, f"{ours.transfer.name} unknown pull")
    left = prefill_by_nixl(ours, asked)

    with pytest.raises(InternalServerError):
        decode(ours, asked, Left({**left.params, "remote_request_id": "nobody's"}, left.call_id))

    assert decode(ours, asked, left).finish_reason == "length"
    nothing_is_held(ours)


def test_what_nobody_fetches_is_given_back(ours: Pair) -> None:
    expired = Counted.by(ours.prefill).expired

    left = prefill(ours, prompt(100, f"{ours.transfer.name} unfetched"))

    assert settles(lambda: metric(ours.prefill, f"{PREFIX}held_blocks") == 4)
    assert settles(lambda: held_share(ours.prefill) == 0, LEASE_SECONDS + 10)
    assert settles(lambda: Counted.by(ours.prefill).expired == expired + 1)
    assert settles(lambda: metric(ours.prefill, f"{PREFIX}held_blocks") == 0)
    late = decode(ours, prompt(100, f"{ours.transfer.name} unfetched"), left)
    assert late.finish_reason == "abort"


def test_what_decode_refuses_is_held_until_the_lease_ends_and_shown(ours: Pair) -> None:
    """D answers 400 before its connector hears of the call, so nobody can tell P."""
    expired = Counted.by(ours.prefill).expired
    asked = prompt(100, f"{ours.transfer.name} refused")
    left = prefill(ours, asked)

    with client(ours.decode.url) as direct, pytest.raises(BadRequestError):
        ask(direct, asked, left.params, left.call_id, max_tokens=1_000_000)

    assert settles(lambda: metric(ours.prefill, f"{PREFIX}held_blocks") == 4)
    assert settles(lambda: Counted.by(ours.prefill).expired == expired + 1, LEASE_SECONDS + 10)
    nothing_is_held(ours)


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


def test_prefill_killed_in_the_middle_fails_one_call_and_can_come_back(
    alone: Engine, ours: Pair
) -> None:
    """Last, because it takes another to go on. Frozen first, so that the call waits."""
    asked = prompt(300, f"{ours.transfer.name} killed")
    ours.prefill.process.signal(SIGSTOP)

    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(delegate, ours, asked)
        assert settles(lambda: held_share(ours.decode) > 0)
        ours.prefill.process.signal(SIGKILL)
        assert waiting.result(LEASE_SECONDS * 3).finish_reason == "abort"

    assert settles(lambda: held_share(ours.decode) == 0)
    ours.restart_prefill()
    with client(alone.url) as reference:
        assert delegate(ours, asked).token_ids == complete(reference, asked).token_ids
    nothing_is_held(ours)


def delegate(pair: Pair, tokens: list[int]) -> Said:
    """One request to D, which has P compute the prompt."""
    with client(pair.decode.url) as direct:
        return ask(direct, tokens, asking(pair))


def unknown(pair: Pair) -> Left:
    return Left({"do_remote_prefill": True, **asking(pair)}, "nobody-prefilled-this")


def outcome(direct: Any, tokens: list[int], params: Mapping[str, Any]) -> Any:
    """The tokens, or that the load failed, in either way of saying so."""
    try:
        said = ask(direct, tokens, params)
    except InternalServerError:
        return "refused"
    return "refused" if said.finish_reason == "abort" else said.token_ids


def ask(
    direct: Any, tokens: list[int], params: Mapping[str, Any], call_id: str = "", **more: Any
) -> Said:
    extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
    headers = {"X-Request-Id": call_id} if call_id else {}
    return complete(direct, tokens, extra_body=extra, extra_headers=headers, **more)


def nothing_is_held(pair: Pair, seconds: float = LEASE_SECONDS + 10) -> None:
    for engine in (pair.prefill, pair.decode):
        assert settles(lambda engine=engine: held_share(engine) == 0, seconds)  # type: ignore[misc]
        assert answers_200(f"{engine.url}/health")
