"""/generate of the reference engine: SGLang's words."""

import json
from typing import Any

import pytest

from tests.engine.api.conftest import Served

PATH = "/generate"
PROMPT = [7, 8, 9, 10]
SAMPLING = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
ASKED: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": SAMPLING}


async def test_tokens_and_numbers_are_those_of_a_completion(served: Served) -> None:
    logged = {**ASKED, "return_logprob": True, "top_logprobs_num": 2}
    said = (await served.http.post(PATH, json=logged)).json()
    same = {"prompt": PROMPT, "return_token_ids": True, "max_tokens": 6, "logprobs": 2}
    asked = {**same, "temperature": 0, "ignore_eos": True}
    right = (await served.http.post("/v1/completions", json=asked)).json()["choices"][0]

    meta = said["meta_info"]
    assert (said["text"], said["output_ids"]) == (right["text"], right["token_ids"])
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 6)
    numbers, tokens, _ = zip(*meta["output_token_logprobs"], strict=True)
    assert list(tokens) == right["token_ids"]
    assert numbers == pytest.approx(right["logprobs"]["token_logprobs"], abs=1e-5)
    assert [len(each) for each in meta["output_top_logprobs"]] == [2] * 6


async def test_each_event_has_all_of_its_output_so_far(served: Served) -> None:
    whole = (await served.http.post(PATH, json=ASKED)).json()
    text = (await served.http.post(PATH, json={**ASKED, "stream": True})).text

    *events, done = text.removesuffix("\n\n").split("\n\n")
    found = [json.loads(each.removeprefix("data: ")) for each in events]
    assert done == "data: [DONE]"
    assert found[-1]["output_ids"] == whole["output_ids"]
    assert found[-1]["text"] == whole["text"]
    assert [each["output_ids"] for each in found] == [
        whole["output_ids"][: len(each["output_ids"])] for each in found
    ]
    assert [each["meta_info"]["finish_reason"] is None for each in found[:-1]] == [True] * (
        len(found) - 1
    )


async def test_several_prompts_and_choices_are_a_list(served: Served) -> None:
    two = {"input_ids": [PROMPT, PROMPT[:2]], "sampling_params": {**SAMPLING, "n": 2}}
    said = (await served.http.post(PATH, json=two)).json()
    alone = (await served.http.post(PATH, json={**ASKED, "input_ids": PROMPT[:2]})).json()

    assert [each["meta_info"]["prompt_tokens"] for each in said] == [4, 4, 2, 2]
    assert said[3]["output_ids"] == alone["output_ids"]
    text = (await served.http.post(PATH, json={**two, "stream": True})).text
    events = text.removesuffix("\n\n").split("\n\n")[:-1]
    found = [json.loads(each.removeprefix("data: ")) for each in events]
    assert {each["index"] for each in found} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "wrong",
    [{"input_ids": None}, {"text": "x"}, {"input_ids": [10**9]}, {"sampling_params": [1]}],
)
async def test_what_cannot_be_served_is_refused(served: Served, wrong: dict[str, Any]) -> None:
    assert (await served.http.post(PATH, json={**ASKED, **wrong})).status_code == 400
