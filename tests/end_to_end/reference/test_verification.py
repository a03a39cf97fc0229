"""Whether KV arrives is told by real engines, and by a gateway that compares."""

import re

from tests.end_to_end.reference.fleet import HTTP, Fleet, Gateway, Pair, Route

STAGED = Route("vllm-nixl", "staged")
OFTEN = ("--engine-metrics-interval", "0.1")
PROMPT = "a prompt that no other test has, and that is longer than a block of sixteen tokens: "


def page(gateway: Gateway) -> str:
    return HTTP.get(f"{gateway.url}/metrics").text


def tokens(gateway: Gateway, result: str) -> float:
    """Of decode, as the gateway counts them."""
    line = rf'^pdgate_kv_verified_tokens_total{{instance="decode-0",result="{result}"}} (\S+)$'
    found = re.search(line, page(gateway), re.MULTILINE)
    return float(found[1]) if found else 0.0


def ask(gateway: Gateway, about: str) -> int:
    """Tokens of the prompt that was asked, once decode's first page is known."""
    gateway.process.wait_until(
        lambda: 'pdgate_kv_verified_tokens_total{instance="decode-0"' in page(gateway),
        "two pages of decode",
    )
    said = gateway.openai().completions.create(
        model="pdgate-tiny", prompt=PROMPT + about, max_tokens=3
    )
    assert said.usage is not None
    return said.usage.prompt_tokens


def test_a_pair_that_hands_over_is_verified(fleet: Fleet) -> None:
    with fleet.gateway(fleet.pair("vllm-nixl", "shm"), STAGED, *OFTEN) as gateway:
        asked = ask(gateway, "verified")

        gateway.process.wait_until(
            lambda: tokens(gateway, "verified") == asked, f"{asked} verified tokens"
        )
        assert (tokens(gateway, "recomputed"), tokens(gateway, "unverifiable")) == (0, 0)
        assert "pdgate_instance_misconfigured{" not in page(gateway)


def test_a_decode_that_recomputes_in_silence_is_named(fleet: Fleet) -> None:
    """Started without a connector, it answers as well as any other."""
    pair = fleet.pair("vllm-nixl", "shm")
    with fleet.gateway(Pair("vllm-nixl", pair.prefill, fleet.single()), STAGED, *OFTEN) as gateway:
        asked = ask(gateway, "recomputed")

        gateway.process.wait_for_line(r"decode-0 computes prompts .* without the KV connector")
        # One token of a prompt is decode's own.
        assert (tokens(gateway, "verified"), tokens(gateway, "recomputed")) == (1, asked - 1)
        wrong = 'pdgate_instance_misconfigured{cause="no_connector",instance="decode-0"} 1.0'
        assert wrong in page(gateway)
