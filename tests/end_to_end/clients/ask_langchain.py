"""langchain-openai: a chat model, its tools and its structured output."""

from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

from tests.end_to_end.clients.asked import (
    HELLO,
    MODEL,
    SCHEMA,
    TIMEOUT_SECONDS,
    TOKENS,
    URL,
    is_weather,
)

TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


class Person(BaseModel):
    """Who it is."""

    name: str
    age: int


def chat(**more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=more.pop("model", MODEL),
        base_url=f"{URL}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        timeout=TIMEOUT_SECONDS,
        **{"temperature": 0, **more},
    )


@pytest.mark.parametrize("responses", [False, True])
def test_a_chat_streams(responses: bool) -> None:
    """Over chat completions, and over responses."""
    model = chat(max_tokens=TOKENS, use_responses_api=responses)
    whole = model.invoke(HELLO)
    pieces = list(model.stream(HELLO))

    assert whole.text
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(pieces) > 2
    assert whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == TOKENS


def test_a_chat_calls_a_tool_and_reads_what_came_of_it() -> None:
    model = chat()
    asked = HumanMessage(HELLO)
    answer = model.bind_tools([TOOL], tool_choice="weather").invoke([asked])
    streamed: Any = None
    for piece in model.bind_tools([TOOL], tool_choice="any").stream([asked]):
        streamed = piece if streamed is None else streamed + piece

    for found in (answer, streamed):
        assert found.tool_calls
        assert all(call["name"] == "weather" for call in found.tool_calls)
        assert all(is_weather(call["args"]) for call in found.tool_calls)
    result = ToolMessage("rain", tool_call_id=answer.tool_calls[0]["id"])
    assert chat(max_tokens=TOKENS).invoke([asked, answer, result]).text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_is_of_a_class(method: Any) -> None:
    found = chat().with_structured_output(Person, method=method).invoke(HELLO)

    assert isinstance(found, Person)


def test_texts_are_embedded() -> None:
    embeddings = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{URL}/v1",
        api_key=SecretStr("none"),
        # It would count in the tokens of a model of OpenAI's.
        check_embedding_ctx_length=False,
    )
    one, two = embeddings.embed_documents(["one", "two"])

    assert embeddings.embed_query("one") == pytest.approx(one)
    assert one != two


def test_errors_are_the_librarys() -> None:
    with pytest.raises(openai.NotFoundError):
        chat(model="another").invoke(HELLO)
    with pytest.raises(openai.BadRequestError):
        chat(top_p=3).invoke(HELLO)
