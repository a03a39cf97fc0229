"""Calls that are not worth splitting get the same answer from one engine alone."""

import json
from pathlib import Path

import pytest

from pdgate.scheduling.disaggregation.decision import MEASURING, SOONER
from pdgate.scheduling.latency.model import ENOUGH
from tests.end_to_end.reference.fleet import HTTP, Fleet, Gateway, Route, client

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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-kvt", "vllm-mooncake"])
def test_prefill_answers_a_call_for_one_token_and_keeps_nothing(
    fleet: Fleet, protocol: str, stream: bool
) -> None:
    pair = fleet.pair(protocol, "shm")
    route = Route(protocol, "staged", "a" if protocol == "vllm-mooncake" else "")
    asked = {"prompt": LONG, "model": "pdgate-tiny", "max_tokens": 1, "temperature": 0}
    before = pair.decode.metric("vllm:prompt_tokens_total")

    with fleet.gateway(pair, route) as gateway:
        answer = HTTP.post(f"{gateway.url}/v1/completions", json={**asked, "stream": stream})
        assert path(gateway, answer.headers["x-request-id"]) == ("prefill_only", "")

    alone = client(fleet.single().url).completions.create(
        model="pdgate-tiny", prompt=LONG, max_tokens=1, temperature=0
    )
    assert answer.status_code == 200
    assert f'"text":{json.dumps(alone.choices[0].text)}' in answer.text.replace(": ", ":")
    assert pair.decode.metric("vllm:prompt_tokens_total") == before
    pair.prefill.keeps_nothing()


def test_auto_measures_both_ways_and_then_knows(fleet: Fleet) -> None:
    pair = fleet.pair("vllm-nixl", "shm")
    expected = said(fleet.single().url, SHORT)[0]
    reasons = []

    with fleet.gateway(pair, Route("vllm-nixl", "staged"), "--disaggregate", "auto") as gateway:
        for _ in range(2 * ENOUGH + 1):
            with client(gateway.url).completions.with_streaming_response.create(
                model="pdgate-tiny", prompt=SHORT, max_tokens=8, temperature=0, stream=True
            ) as answer:
                call_id = answer.headers["x-request-id"]
                chunks = [chunk for chunk in answer.parse() if chunk.choices]
            assert "".join(chunk.choices[0].text for chunk in chunks) == expected
            decided = gateway.record(call_id)["attempts"][0]["decision"]  # type: ignore[index]
            reasons.append((decided["taken"], decided["reason"]))

    assert (
        reasons[: 2 * ENOUGH] == [("split", MEASURING)] * ENOUGH + [("local", MEASURING)] * ENOUGH
    )
    assert reasons[-1][1] == SOONER


def test_all_workers_do_what_one_of_them_was_told(fleet: Fleet, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("an-admin-token-of-a-test")
    headers = {"authorization": f"Bearer {token.read_text()}"}
    more = ("--workers", "2", "--admin-token-file", str(token))

    with fleet.gateway(fleet.pair("vllm-nixl", "shm"), Route("vllm-nixl", "staged"), *more) as gate:
        url = f"{gate.url}/admin/disaggregation"
        assert HTTP.get(url, headers=headers).json()["rule"] == "always"

        HTTP.put(url, headers=headers, json={"rule": "never"}).raise_for_status()

        def in_a_row() -> bool | None:
            """Each on a connection of its own, so any worker may answer."""
            found = {HTTP.get(url, headers=headers).json()["rule"] for _ in range(20)}
            return found == {"never"} or None

        gate.process.wait_until(in_a_row, "both workers to follow")
