"""Responses, messages and calls of tokens say through two engines what one engine alone would say."""

import json
from typing import Any

import pytest

from pdgate.protocols.apis import GENERATE, MESSAGES, NATIVE, RESPONSES
from tests.end_to_end.reference.fleet import HTTP, Fleet, Route

TEXT = "a prompt that is longer than forty tokens of a byte each, by far"
MODEL = {"model": "pdgate-tiny", "temperature": 0}
ASKED: dict[str, dict[str, Any]] = {
    RESPONSES: {**MODEL, "input": TEXT, "max_output_tokens": 8},
    MESSAGES: {**MODEL, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8},
}
WHERE = {
    ("vllm-nixl", "staged", ""): {RESPONSES: "disaggregated", MESSAGES: "disaggregated"},
    ("vllm-mooncake", "batch", "d"): {RESPONSES: "disaggregated", MESSAGES: "local"},
    ("vllm-kvt", "batch", ""): {RESPONSES: "local", MESSAGES: "local"},
    # Its decode reads no prompts, so messages need a plain engine.
    ("sglang", "batch", ""): {RESPONSES: "disaggregated"},
}


def said(url: str, path: str) -> tuple[str, str]:
    """The text, and the call's id."""
    answer = HTTP.post(f"{url}{path}", json=ASKED[path])
    assert answer.status_code == 200, answer.text
    found = answer.json()
    parts = found["output"][0]["content"] if path == RESPONSES else found["content"]
    return parts[0]["text"], answer.headers.get("x-request-id", "")


@pytest.mark.parametrize("way", WHERE, ids=lambda way: way[0])
def test_the_answer_is_that_of_one_engine(fleet: Fleet, way: tuple[str, str, str]) -> None:
    protocol, mode, generation = way
    pair, alone = fleet.pair(protocol, "shm"), fleet.single().url

    with fleet.gateway(pair, Route(protocol, mode, generation)) as gateway:
        for path, where in WHERE[way].items():
            text, call_id = said(gateway.url, path)

            assert gateway.record(call_id)["path"] == where
            assert text == said(alone, path)[0]
            assert len(text) > 0
            stream = {**ASKED[path], "stream": True}
            events = HTTP.post(f"{gateway.url}{path}", json=stream).text
            last = "response.incomplete" if path == RESPONSES else "message_stop"
            names = [line[7:] for line in events.splitlines() if line.startswith("event: ")]
            assert names[-1] in (last, "response.completed")
    pair.prefill.keeps_nothing()


TOKENS: dict[str, Any] = {
    "model": "pdgate-tiny",
    "token_ids": [7 + n % 40 for n in range(60)],
    "sampling_params": {"max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True},
}


def test_tokens_are_those_of_one_engine(fleet: Fleet) -> None:
    pair, alone = fleet.pair("vllm-nixl", "shm"), fleet.single().url

    with fleet.gateway(pair, Route("vllm-nixl", "batch", "")) as gateway:
        split = HTTP.post(f"{gateway.url}{GENERATE}", json=TOKENS)
        (right,) = HTTP.post(f"{alone}{GENERATE}", json=TOKENS).json()["choices"]
        events = HTTP.post(f"{gateway.url}{GENERATE}", json={**TOKENS, "stream": True}).text

        record = gateway.record(split.headers["x-request-id"])
        assert (record["path"], record["kv"]) == ("disaggregated", "handed_over")
        (said,) = split.json()["choices"]
        assert said["token_ids"] == right["token_ids"]
        numbers = [
            [one["logprob"] for one in each["logprobs"]["content"]] for each in (said, right)
        ]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
        assert "kv_transfer_params" not in split.json()
        *chunks, done = events.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        streamed = [json.loads(each.removeprefix("data: "))["choices"][0] for each in chunks]
        assert [token for each in streamed for token in each["token_ids"]] == right["token_ids"]
    pair.prefill.keeps_nothing()


NATIVE_CALL: dict[str, Any] = {
    "input_ids": TOKENS["token_ids"],
    "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
    "return_logprob": True,
}


def test_sglangs_own_outputs_are_those_of_one_engine(fleet: Fleet) -> None:
    pair, alone = fleet.pair("sglang", "shm"), fleet.single().url

    with fleet.gateway(pair, Route("sglang", "batch", "")) as gateway:
        split = HTTP.post(f"{gateway.url}{NATIVE}", json=NATIVE_CALL)
        assert split.status_code == 200, split.text
        right = HTTP.post(f"{alone}{NATIVE}", json=NATIVE_CALL).json()
        events = HTTP.post(f"{gateway.url}{NATIVE}", json={**NATIVE_CALL, "stream": True}).text

        record = gateway.record(split.headers["x-request-id"])
        assert (record["path"], record["kv"]) == ("disaggregated", "handed_over")
        said = split.json()
        assert (said["text"], said["output_ids"]) == (right["text"], right["output_ids"])
        numbers = [
            [each[0] for each in one["meta_info"]["output_token_logprobs"]] for one in (said, right)
        ]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)
        *_, last, done = events.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["output_ids"] == right["output_ids"]
    pair.prefill.keeps_nothing()
