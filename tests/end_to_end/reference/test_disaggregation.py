"""Calls that are not worth splitting get the same answer from a decode engine alone."""

import pytest

from tests.end_to_end.reference.fleet import Fleet, Gateway, Route, client

SHORT, LONG = "short", "a prompt that is longer than forty tokens of a byte each, by far"


def said(url: str, prompt: str) -> tuple[str, str]:
    raw = client(url).completions.with_raw_response.create(
        model="pdgate-tiny", prompt=prompt, max_tokens=8, temperature=0
    )
    return raw.parse().choices[0].text, raw.headers.get("x-request-id", "")


def path(gateway: Gateway, call_id: str) -> tuple[object, object]:
    record = gateway.record(call_id)
    return record["path"], record["why_local"]


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-kvt", "vllm-mooncake", "neuron"])
def test_decode_engines_read_prompts_themselves(fleet: Fleet, protocol: str) -> None:
    pair = fleet.pair(protocol, "shm")
    route = Route(protocol, "batch", "a" if protocol == "vllm-mooncake" else "")
    before = pair.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute")

    with fleet.gateway(pair, route, "--disaggregate", "never") as gateway:
        text, call_id = said(gateway.url, LONG)
        assert path(gateway, call_id) == ("local", "never asked for")

    assert text == said(fleet.single().url, LONG)[0]
    after = pair.decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    # An earlier test may have left a part of the prompt in decode's cache.
    assert after - before > 1


def test_only_long_prompts_are_split(fleet: Fleet) -> None:
    pair = fleet.pair("vllm-nixl", "shm")
    # Four bytes of a body count as a token.
    flags = ("--disaggregate", "uncached_tokens_above", "--uncached-tokens", "30")

    with fleet.gateway(pair, Route("vllm-nixl", "staged"), *flags) as gateway:
        for prompt, expected in (
            (SHORT, ("local", "short prompt")),
            (LONG, ("disaggregated", "")),
        ):
            text, call_id = said(gateway.url, prompt)

            assert path(gateway, call_id) == expected
            assert text == said(fleet.single().url, prompt)[0]
