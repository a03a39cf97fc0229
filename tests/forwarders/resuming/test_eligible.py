"""A call is left alone where its rest depends on more than the tokens so far."""

import pytest

from pdgate.forwarders.resuming.eligible import CARRIED, more_than_text, why_not
from pdgate.protocols.call import COMPLETIONS, encode
from tests.support.scripted import call_of, chat


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stream": False}, "no stream"),
        ({"n": 2}, "several choices"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"stop": "x"}, "a stop string may have begun"),
        ({"stop": ["x"]}, "a stop string may have begun"),
        ({"response_format": {"type": "json_object"}}, "a grammar cannot be entered midway"),
        ({"presence_penalty": 0.5}, "a penalty counts the tokens of the answer"),
        ({"seed": 1}, "a seed's draws cannot be entered midway"),
        ({"seed": 1, "temperature": 0.5}, "a seed's draws cannot be entered midway"),
        ({"bad_words": ["x"]}, "the field bad_words"),
        ({"prompt": "of completions"}, "the field prompt"),
    ],
)
def test_what_cannot_be_resumed_is_told_with_its_reason(
    fields: dict[str, object], reason: str
) -> None:
    assert why_not(chat(**fields)) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1, "stop": [], "tools": None, "tool_choice": "none", "bad_words": None},
        {"presence_penalty": 0, "response_format": {"type": "text"}, "metadata": {"a": "b"}},
        {"seed": 1, "temperature": 0},
        {"logprobs": True, "top_logprobs": 2, "max_completion_tokens": 5},
    ],
)
def test_what_says_nothing_is_no_hindrance(fields: dict[str, object]) -> None:
    assert why_not(chat(**fields)) == ""


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [[1], [2]], ["a", [1]], [[1, 2], [3, 4], [5]], ["x" * 5000, "b"]]
)
def test_several_prompts_are_several_answers(prompt: list[object]) -> None:
    """Of which the events of the first do not tell, and another engine was asked for its rest only."""
    body = {"model": "m", "prompt": prompt, "stream": True}

    assert why_not(call_of(encode(body), COMPLETIONS)) == "several prompts"


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2], [[1, 2]]])
def test_one_prompt_is_one_however_it_is_written(prompt: object) -> None:
    body = {"model": "m", "prompt": prompt, "stream": True}

    assert why_not(call_of(encode(body), COMPLETIONS)) == ""


BLANKS = b" \n\t\r" * 50


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (b'"a",%b"b"', "several prompts"),
        (b"[1],%b[2]", "several prompts"),
        (b'"a"%b', ""),
        (b"1,%b2", ""),
        (b"-1,%b2", ""),
    ],
)
def test_blanks_make_no_prompt(prompt: bytes, reason: str) -> None:
    """Behind 63 of them one list of ids was several prompts."""
    written = b"[%b%b%b]" % (BLANKS, prompt % BLANKS, BLANKS)
    body = b'{"model": "m", "stream": true, "prompt": %b}' % written

    assert why_not(call_of(body, COMPLETIONS)) == reason


@pytest.mark.parametrize(
    "name", ["max_tokens", "min_tokens", "max_completion_tokens", "top_logprobs"]
)
@pytest.mark.parametrize("said", [-1, "all", [1], "x" * 20_000])
def test_what_is_no_count_may_mean_anything(name: str, said: object) -> None:
    """vLLM takes -1 log-probabilities for those of all tokens."""
    assert why_not(chat(**{name: said})) == f"the field {name}"


def test_of_a_completion_log_probabilities_are_counted() -> None:
    body = {"model": "m", "prompt": "hi", "stream": True, "logprobs": -1}

    assert why_not(call_of(encode(body), COMPLETIONS)) == "the field logprobs"


def test_an_echo_is_part_of_the_answer() -> None:
    body = {"model": "m", "prompt": "hi", "stream": True, "echo": True}

    assert why_not(call_of(encode(body), COMPLETIONS)) == "the prompt is echoed"


def test_nothing_is_carried_that_a_chat_has_for_itself() -> None:
    assert CARRIED.isdisjoint({"messages", "tools", "max_completion_tokens", "top_logprobs"})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
        {"image_url": "http://x/a.png"},
        {"image_url": {"url": "http://x/a.png"}},
        {"type": None, "video_url": "http://x/a.mp4"},
        {"type": "text", "text": "a", "uuid": "one", "image_url": "http://x/a.png"},
        {"type": "refusal", "refusal": "a", "uuid": "one", "audio_url": "http://x/a.wav"},
        {"type": "text", "text": "a", "of_some_engine": 1},
    ],
    ids=str,
)
def test_a_picture_is_one_whatever_its_part_is_called(part: dict[str, object]) -> None:
    """vLLM goes by `type` only where there is one, and no `uuid`."""
    content = [part, {"type": "text", "text": "what is it?"}]

    assert more_than_text(chat(messages=[{"role": "user", "content": content}]))


def test_text_is_text_in_parts_and_without() -> None:
    parts = [
        {"text": "and"},
        {"type": "text", "text": "so on", "cache_control": {"type": "ephemeral"}},
        {"type": "refusal", "refusal": "no"},
    ]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]},
        {"role": "assistant", "content": parts},
    ]

    assert not more_than_text(chat(messages=messages))
    assert not more_than_text(call_of(b'{"model": "m", "prompt": "hi"}', COMPLETIONS))
