"""anthropic: messages, and how many tokens they would be."""

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from tests.end_to_end.clients.asked import (
    HELLO,
    MODEL,
    SCHEMA,
    TIMEOUT_SECONDS,
    TOKENS,
    URL,
    is_weather,
)

CLIENT = Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS)
HI: Any = [{"role": "user", "content": HELLO}]
TOOL: Any = {"name": "weather", "description": "of a place", "input_schema": SCHEMA}
# The client has no name for it any more.
GREEDY: Any = {"temperature": 0}


class Person(BaseModel):
    name: str
    age: int


def test_a_message_streams() -> None:
    asked: Any = {"model": MODEL, "messages": HI, "max_tokens": TOKENS, "extra_body": GREEDY}
    whole = CLIENT.messages.create(**asked)
    with CLIENT.messages.stream(**asked) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()

    (block,) = whole.content
    assert block.type == "text"
    assert text == block.text
    assert text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == TOKENS
    cached = final.usage.cache_read_input_tokens or 0
    assert final.usage.input_tokens + cached > len(HELLO)


def test_a_message_uses_a_tool() -> None:
    asked: Any = {"model": MODEL, "max_tokens": 200, "tools": [TOOL]}
    forced: Any = {"type": "tool", "name": "weather"}
    answer = CLIENT.messages.create(**asked, messages=HI, tool_choice=forced)
    with CLIENT.messages.stream(**asked, messages=HI, tool_choice={"type": "any"}) as events:
        streamed = events.get_final_message()

    for found in (answer, streamed):
        assert found.stop_reason == "tool_use"
        for block in found.content:
            assert block.type == "tool_use"
            assert block.name == "weather"
            assert is_weather(block.input)
    uses = [block.id for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use, "content": "rain"} for use in uses]
    told: Any = [*HI, {"role": "assistant", "content": answer.content},
                 {"role": "user", "content": results}]  # fmt: skip
    after = CLIENT.messages.create(**{**asked, "max_tokens": TOKENS}, messages=told)
    assert after.content[0].type == "text"


def test_a_message_is_parsed_as_a_class() -> None:
    answer = CLIENT.messages.parse(model=MODEL, max_tokens=200, messages=HI, output_format=Person)

    assert isinstance(answer.parsed_output, Person)


def test_tokens_are_counted_before_they_are_sent() -> None:
    counted = CLIENT.messages.count_tokens(model=MODEL, messages=HI, system="Be brief")
    sent = CLIENT.messages.create(model=MODEL, messages=HI, system="Be brief", max_tokens=1)

    cached = sent.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == sent.usage.input_tokens + cached


def test_errors_are_the_librarys() -> None:
    def call(**fields: Any) -> None:
        CLIENT.messages.create(**{"model": MODEL, "messages": HI, "max_tokens": 4, **fields})

    with pytest.raises(anthropic.NotFoundError) as missing:
        call(model="another")
    assert isinstance(missing.value.body, dict)
    assert missing.value.body["type"] == "error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        call(extra_body={"temperature": -3})
    with pytest.raises(anthropic.NotFoundError):
        CLIENT.messages.count_tokens(model="another", messages=HI)
    with (
        pytest.raises(anthropic.NotFoundError),
        CLIENT.messages.stream(model="another", messages=HI, max_tokens=4),
    ):
        pass
