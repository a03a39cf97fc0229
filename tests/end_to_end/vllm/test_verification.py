"""What stock vLLM counts is enough to tell whether KV arrives."""

import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import PDGATE_TCP, Engine, Fleet, Pair, Transfer
from tests.end_to_end.vllm.gateway import Gateway, gateway_over

PROMPT_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Watched:
    """Engines whose metrics are read often."""

    transfer: Transfer
    serve: Sequence[str]


@contextmanager
def watching(pair: Pair, serve: Sequence[str], mode: str, fleet: Fleet) -> Iterator[Gateway]:
    """Over these engines, once two pages of decode are known."""
    # Logs are named after it, and the pair has gateways of its own.
    transfer = replace(pair.transfer, name=f"watched-{pair.transfer.name}")
    engines = Watched(transfer, (*serve, "--engine-metrics-interval", "0.2"))
    with gateway_over(engines, mode, fleet.logs) as gateway:
        gateway.process.wait_until(
            lambda: 'pdgate_kv_verified_tokens_total{instance="decode-0"' in page(gateway),
            "two pages of decode",
        )
        yield gateway


def page(gateway: Gateway) -> str:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def tokens(gateway: Gateway) -> dict[str, float]:
    """Result -> decode's prompt tokens."""
    series = r'pdgate_kv_verified_tokens_total{instance="decode-0",result="(\w+)"} (\S+)'
    return {result: float(number) for result, number in re.findall(series, page(gateway))}


def test_a_pair_that_hands_over_is_verified(pair: Pair, fleet: Fleet) -> None:
    with (
        watching(pair, pair.serve, "staged", fleet) as gateway,
        client(gateway.url) as ours,
    ):
        complete(ours, prompt(PROMPT_TOKENS, f"verified {pair.transfer.name}"))

        gateway.process.wait_until(lambda: sum(tokens(gateway).values()), "a verdict")
        assert tokens(gateway) == {"verified": PROMPT_TOKENS, "recomputed": 0, "unverifiable": 0}


@pytest.mark.parametrize("pair", [PDGATE_TCP], indirect=True, ids=lambda it: it.name)
def test_a_decode_without_a_connector_is_named(pair: Pair, alone: Engine, fleet: Fleet) -> None:
    """It takes no notice of what the call says of P, and answers as well as any other."""
    prefill = pair.transfer.prefill_flag(pair.prefill.url, pair.prefill_kv)
    with (
        watching(pair, (*prefill, "--decode", alone.url), "batch", fleet) as gateway,
        client(gateway.url) as ours,
    ):
        complete(ours, prompt(PROMPT_TOKENS, "recomputed"))

        gateway.process.wait_for_line(r"decode-0 computes prompts .* without the KV connector")
        assert tokens(gateway) == {
            "verified": 1,
            "recomputed": PROMPT_TOKENS - 1,
            "unverifiable": 0,
        }
