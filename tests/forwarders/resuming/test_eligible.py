"""A call is left alone where its rest depends on more than the tokens so far."""

import pytest

from pdgate.forwarders.resuming.eligible import CARRIED, why_not
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


def test_an_echo_is_part_of_the_answer() -> None:
    body = {"model": "m", "prompt": "hi", "stream": True, "echo": True}

    assert why_not(call_of(encode(body), COMPLETIONS)) == "the prompt is echoed"


def test_nothing_is_carried_that_a_chat_has_for_itself() -> None:
    assert CARRIED.isdisjoint({"messages", "tools", "max_completion_tokens", "top_logprobs"})
