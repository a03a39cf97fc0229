"""Answers in OpenAI's shapes; the official client's types are the judge."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pdgate.protocols.call import CHAT, COMPLETIONS
from pdgate.protocols.sse import Splitter, payload
from tests.engine.api.conftest import Served

HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}


async def complete(served: Served, prompt: Any = "Hello", **fields: Any) -> dict[str, Any]:
    answer = await served.http.post(COMPLETIONS, json={"prompt": prompt, **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    Completion.model_validate(answer.json(), strict=True)
    found: dict[str, Any] = answer.json()
    return found


async def chat(served: Served, messages: Any = None, **fields: Any) -> dict[str, Any]:
    body = {"messages": messages or HI, **GREEDY, **fields}
    answer = await served.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    ChatCompletion.model_validate(answer.json(), strict=True)
    found: dict[str, Any] = answer.json()
    return found


async def events(served: Served, path: str, **fields: Any) -> list[Any]:
    """The payloads of a stream, [DONE] checked and left out."""
    answer = await served.http.post(path, json={**GREEDY, "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = [payload(event) for event in Splitter().feed(answer.content)]
    assert found.pop() == b"[DONE]"
    return [json.loads(event) for event in found]


async def test_a_completion_counts_its_tokens(served: Served) -> None:
    answer = await complete(served, "Hello")

    assert answer["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 12,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["text"]) == 12


async def test_a_known_prefix_is_reported_as_cached(served: Served) -> None:
    await complete(served, "a long prompt " * 5)
    answer = await complete(served, "a long prompt " * 5)

    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}


async def test_the_wire_id_is_in_the_answers_id(served: Served) -> None:
    headers = {"X-Request-Id": "abc"}
    bodies = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": HI}}
    ids = [
        (await served.http.post(path, json=body, headers=headers)).json()["id"]
        for path, body in bodies.items()
    ]

    assert ids == ["cmpl-abc", "chatcmpl-abc"]


async def test_prompts_come_as_text_or_tokens_alone_or_many(served: Served) -> None:
    text = (await complete(served, "Hi"))["choices"][0]["text"]

    for prompt in (["Hi"], [256, 72, 105], [[256, 72, 105]]):
        assert [c["text"] for c in (await complete(served, prompt))["choices"]] == [text]
    for prompts in (["Hi", "Ho", "Hi"], [[256, 72, 105], [256, 72, 111], [256, 72, 105]]):
        several = await complete(served, prompts)
        texts = [choice["text"] for choice in several["choices"]]
        assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
        assert texts[0] == texts[2] == text != texts[1]
        assert several["usage"]["prompt_tokens"] == 9


async def test_several_choices_differ_and_a_seed_repeats_them(served: Served) -> None:
    asked = {"n": 3, "seed": 5, "temperature": 2.0}
    first, again = [(await chat(served, **asked))["choices"] for _ in range(2)]

    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in first}) == 3
    assert first == again


async def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    whole = await complete(served, "Hello", logprobs=1)
    pieces = await events(served, COMPLETIONS, prompt="Hello", logprobs=1)

    choices = [piece["choices"][0] for piece in pieces]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
    for name, values in whole["choices"][0]["logprobs"].items():
        for choice, right in zip(choices, values, strict=True):
            assert choice["logprobs"][name] == [
                right if isinstance(right, str) else pytest.approx(right)
            ]


async def test_a_chat_stream_begins_with_the_role_and_ends_with_the_usage(served: Served) -> None:
    whole = await chat(served)
    pieces = await events(served, CHAT, messages=HI, stream_options={"include_usage": True})

    for piece in pieces:
        ChatCompletionChunk.model_validate(piece, strict=True)
    first, *rest, last = pieces
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(piece["choices"][0]["delta"]["content"] for piece in rest)
    assert text == whole["choices"][0]["message"]["content"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert all(piece["usage"] is None for piece in [first, *rest])


async def test_echo_repeats_the_prompt_with_its_logprobs(served: Served) -> None:
    choice = (await complete(served, echo=True, logprobs=2, max_tokens=3))["choices"][0]

    assert choice["text"].startswith("Hello")
    assert choice["logprobs"]["tokens"][1:6] == list("Hello")
    assert choice["logprobs"]["token_logprobs"][0] == 0.0
    assert len(choice["logprobs"]["token_logprobs"]) == 9


async def test_token_ids_come_when_asked_for(served: Served) -> None:
    choice = (await complete(served, "Hi", return_token_ids=True))["choices"][0]
    answer = await chat(served, return_token_ids=True)
    plain = await complete(served, "Hi")

    assert choice["prompt_token_ids"] == [256, 72, 105]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    assert len(answer["choices"][0]["token_ids"]) == 12
    assert answer["prompt_token_ids"][0] == 256
    assert "token_ids" not in plain["choices"][0]


async def test_chat_logprobs_name_the_alternatives(served: Served) -> None:
    choice = (await chat(served, logprobs=True, top_logprobs=2))["choices"][0]

    first = choice["logprobs"]["content"][0]
    assert first["token"] == choice["message"]["content"][0]
    assert first["top_logprobs"][0]["token"] == first["token"]
    assert first["bytes"] == list(first["token"].encode())


async def test_a_stop_string_ends_the_text(served: Served) -> None:
    text = (await complete(served, "Hello"))["choices"][0]["text"]
    stop = text[4:6]

    cut = (await complete(served, "Hello", stop=[stop]))["choices"][0]
    kept = await complete(served, "Hello", stop=stop, include_stop_str_in_output=True)
    later = (await complete(served, "Hello", stop=stop, min_tokens=12))["choices"][0]

    assert cut["text"] == text[: text.index(stop)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert kept["choices"][0]["text"] == text[: text.index(stop) + 2]
    assert later["text"] == text


async def test_a_stop_token_ends_the_text(served: Served) -> None:
    text = (await complete(served, "Hello"))["choices"][0]["text"]
    choice = (await complete(served, "Hello", stop_token_ids=[ord(text[3])]))["choices"][0]

    assert choice["text"] == text[: text.index(text[3])]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord(text[3]))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"stop": None, "n": None, "temperature": None, "seed": None, "user": "u"},
        {"audio": {"format": "wav", "voice": "ash"}, "modalities": ["text"], "store": True},
        {"function_call": "none", "functions": [{"name": "f"}], "parallel_tool_calls": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "web_search_options": {}, "verbosity": "low"},
        {"prediction": {"content": "x", "type": "content"}, "logit_bias": {"foo": 0}},
        {"top_logprobs": 0, "logprobs": True, "max_completion_tokens": 3, "seed": -9007},
        {"frequency_penalty": -2, "presence_penalty": 2, "top_p": 1, "metadata": {"a": "b"}},
    ],
)
async def test_what_openai_clients_send_is_never_an_error(
    served: Served, fields: dict[str, Any]
) -> None:
    await chat(served, **fields)


async def test_every_role_and_kind_of_content_is_read(served: Served) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await chat(
        served,
        [
            {"role": "developer", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "d", "tool_call_id": "1"},
            {"role": "function", "content": "e", "name": "f"},
        ],
    )


async def test_a_completion_may_leave_the_limit_to_the_engine(served: Served) -> None:
    """As in vLLM, null is not the same as no limit at all, which means 16."""
    answer = await complete(served, max_tokens=None, ignore_eos=True)

    assert answer["usage"]["completion_tokens"] == 32


async def test_a_limit_of_zero_says_nothing(served: Served) -> None:
    choice = (await chat(served, max_tokens=0))["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_another_engine_made_of_a_chat_are_taken_for_it(
    served: Served, stream: bool
) -> None:
    """As vLLM's decode takes those that prefill answered: neither template nor tokenizer is asked."""
    ids = [1, 72, 105, 33]
    told = {"kv_transfer_params": {"prompt_token_ids": ids}, "return_token_ids": True}
    if stream:
        said = (await events(served, CHAT, messages=HI, **told))[0]
    else:
        said = await chat(served, **told)

    assert said["prompt_token_ids"] == ids
    own = await chat(served, return_token_ids=True)
    assert own["prompt_token_ids"] != ids


async def test_ids_are_left_out_beside_media_and_refused_where_they_are_none(
    served: Served,
) -> None:
    shown = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, PICTURE]}]
    own = await chat(served, shown, return_token_ids=True)
    told = {"kv_transfer_params": {"prompt_token_ids": [1, 2]}, "return_token_ids": True}

    assert (await chat(served, shown, **told))["prompt_token_ids"] == own["prompt_token_ids"]
    for nonsense in ("1", ["1"], [99_999], [-1], [True]):
        asked = {"messages": HI, "kv_transfer_params": {"prompt_token_ids": nonsense}}
        refused = await served.http.post(CHAT, json=asked)
        assert (refused.status_code, refused.json()["error"]["param"]) == (
            400,
            "kv_transfer_params.prompt_token_ids",
        )
