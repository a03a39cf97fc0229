"""/inference/v1/generate of the reference engine: ids in, ids out."""

import json
from typing import Any

import pytest

from tests.engine.api.conftest import Served

PATH = "/inference/v1/generate"
PROMPT = [7, 8, 9, 10]
SAMPLING = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 1}


async def test_tokens_are_those_of_a_completion(served: Served) -> None:
    asked = {"token_ids": PROMPT, "sampling_params": {**SAMPLING, "prompt_logprobs": 1}}
    said = (await served.http.post(PATH, json=asked)).json()
    same = {"prompt": PROMPT, "return_token_ids": True, **SAMPLING}
    right = (await served.http.post("/v1/completions", json=same)).json()["choices"][0]

    (choice,) = said["choices"]
    assert choice["token_ids"] == right["token_ids"]
    assert choice["finish_reason"] == "length"
    content = choice["logprobs"]["content"]
    assert [one["token_id"] for one in content] == right["token_ids"]
    # At temperature 0 the token that is drawn is the likeliest.
    assert [(one["rank"], one["top_logprobs"][0]["token_id"]) for one in content] == [
        (1, token) for token in right["token_ids"]
    ]
    numbers = right["logprobs"]["token_logprobs"]
    assert [one["logprob"] for one in content] == pytest.approx(numbers, abs=1e-5)
    first, *others = said["prompt_logprobs"]
    assert first is None
    assert [str(token) in one for token, one in zip(PROMPT[1:], others, strict=True)] == [True] * 3
    assert said["usage"]["completion_tokens"] == 6


async def test_a_stream_has_the_same_tokens_and_its_usage_last(served: Served) -> None:
    asked: dict[str, Any] = {"token_ids": PROMPT, "sampling_params": SAMPLING}
    whole = (await served.http.post(PATH, json=asked)).json()["choices"][0]["token_ids"]
    more = {"stream": True, "stream_options": {"include_usage": True}}
    text = (await served.http.post(PATH, json={**asked, **more})).text

    *chunks, usage, done = text.removesuffix("\n\n").split("\n\n")
    found = [json.loads(one.removeprefix("data: ")) for one in chunks]
    assert [token for one in found for token in one["choices"][0]["token_ids"]] == whole
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 6
    assert done == "data: [DONE]"


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": []},
        {"token_ids": [10**9]},
        {"token_ids": "text"},
        {"sampling_params": None},
        {"sampling_params": [1]},
        {"output_mode": "text"},
    ],
)
async def test_what_cannot_be_served_is_refused(served: Served, wrong: dict[str, Any]) -> None:
    asked = {"token_ids": PROMPT, "sampling_params": SAMPLING, **wrong}
    assert (await served.http.post(PATH, json=asked)).status_code == 400
