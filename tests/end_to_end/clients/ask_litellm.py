"""litellm, with the gateway as a server of OpenAI's API and as one of Anthropic's."""

import json
from typing import Any

import litellm
import pytest
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

HI: Any = [{"role": "user", "content": HELLO}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
SERVERS = {"hosted_vllm": f"{URL}/v1", "openai": f"{URL}/v1", "anthropic": URL}


class Person(BaseModel):
    name: str
    age: int


def ask(provider: str = "hosted_vllm", model: str = MODEL, **fields: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{model}",
        messages=HI,
        api_base=SERVERS[provider],
        api_key="none",
        num_retries=0,
        timeout=TIMEOUT_SECONDS,
        **fields,
    )


@pytest.mark.parametrize("provider", SERVERS)
def test_a_chat_streams(provider: str) -> None:
    whole = ask(provider, max_tokens=TOKENS, temperature=0)
    pieces = list(ask(provider, max_tokens=TOKENS, temperature=0, stream=True))

    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert text
    assert whole.usage.completion_tokens == TOKENS


@pytest.mark.parametrize("provider", SERVERS)
def test_a_tool_is_called(provider: str) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    asked: Any = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    answer = ask(provider, **asked)
    streamed = litellm.stream_chunk_builder(list(ask(provider, **asked, stream=True)))

    for found in (answer, streamed):
        (call,) = found.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert is_weather(json.loads(call.function.arguments))


def test_an_answer_is_of_a_class() -> None:
    answer = ask(response_format=Person)

    assert Person.model_validate_json(answer.choices[0].message.content)


def test_texts_are_embedded_and_compared() -> None:
    # Its own answers are of Pydantic's older kind.
    found: Any = litellm.embedding(
        model=f"hosted_vllm/{MODEL}", input=["one", "two"], api_base=SERVERS["openai"], api_key="x"
    )
    ranked: Any = litellm.rerank(
        model=f"hosted_vllm/{MODEL}",
        query="one",
        documents=["two", "one"],
        api_base=URL,
        api_key="x",
    )

    assert len(found.data) == 2
    assert ranked.results[0]["index"] == 1


def test_errors_are_the_librarys() -> None:
    with pytest.raises(litellm.NotFoundError):
        ask(model="another")
    with pytest.raises(litellm.BadRequestError):
        ask(temperature=-3)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask("openai", max_tokens=10_000_000)
    with pytest.raises(litellm.NotFoundError):
        ask("anthropic", model="another", max_tokens=4)
