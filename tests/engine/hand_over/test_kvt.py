"""What vllm-kvt has of its own."""

from contextlib import closing
from typing import Any

import pytest

from pdgate.engine.hand_over.kvt import KvtHandOver
from tests.support.engine_pair import D_BLOCKS, PROMPT, Pair, Start, arrival, prefill
from tests.support.fake_core import SECONDS, FakeCore


@pytest.mark.parametrize("params", [{"do_local_prefill": True}, {"ali_llumnix_disagg": False}])
def test_kvt_computes_locally_when_told_to(params: dict[str, Any]) -> None:
    with closing(FakeCore("tcp", "vllm-kvt", "decode")) as d:
        address = {"remote_host": "127.0.0.1", "remote_port": 1}

        assert d.connector.plan(arrival(params={**address, **params})) is None


def test_kvt_batch_has_all_but_the_last_token_computed(start: Start) -> None:
    pair = start("vllm-kvt batch")

    pair.d.load(pair.to_decode(), D_BLOCKS)

    _, prompt, tokens = pair.p.prefills.get(timeout=SECONDS)
    assert tuple(prompt) == PROMPT
    assert tokens == len(PROMPT) - 1
    assert pair.d.result() is None
    assert pair.d.connector.load_failure == "abort"


def test_a_staged_decode_may_ask_before_prefill_knows(start: Start) -> None:
    """KVT would answer 404, and be asked again."""
    pair = start("vllm-kvt staged")
    pair.d.load(pair.to_decode(), D_BLOCKS)
    assert pair.d.results.empty()

    prefill(pair)

    assert pair.d.result() is None
    assert pair.d.holds(D_BLOCKS, seed=1)
    assert pair.p.freed.get(timeout=SECONDS) == "p1"


def test_what_prefill_never_comes_to_know_fails_soon(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvtHandOver, "meet_seconds", 0.1)
    pair = start("vllm-kvt staged")

    pair.d.load(pair.to_decode(), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("unknown key")


def test_what_prefill_knows_to_be_gone_fails_at_once(start: Start) -> None:
    pair = start("vllm-kvt staged")
    prefill(pair)
    pair.p.connector.dropped("p1", "the lease is over")

    pair.d.load(pair.to_decode(), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("expired: the lease is over")


def test_a_decode_engine_computes_no_prompts_for_others(backend: str) -> None:
    with closing(Pair("vllm-kvt batch", backend)) as pair:
        host, port = pair.d.connector.kv_address
        pair.d.load(arrival("d1", params={"remote_host": host, "remote_port": port}), D_BLOCKS)

        error = pair.d.result()
    assert error is not None
    assert error.startswith("unsupported")
