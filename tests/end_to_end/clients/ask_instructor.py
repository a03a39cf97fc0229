"""instructor: answers of a class, by each of its ways to ask for them."""

from typing import Any

import instructor
import openai
import pytest
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel

from tests.end_to_end.clients.asked import HELLO, MODEL, TIMEOUT_SECONDS, URL

HI: Any = [{"role": "user", "content": HELLO}]


class Address(BaseModel):
    street: str
    number: int | None


class Person(BaseModel):
    """Who it is."""

    name: str
    age: int
    addresses: list[Address]


def client(mode: Mode) -> Any:
    plain = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS)
    return instructor.from_openai(plain, mode=mode)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_an_answer_is_of_a_class(mode: Mode) -> None:
    found = client(mode).create(model=MODEL, messages=HI, response_model=Person, max_retries=0)

    assert isinstance(found, Person)


def test_a_class_is_filled_while_it_streams() -> None:
    pieces = list(
        client(Mode.TOOLS).create_partial(
            model=MODEL, messages=HI, response_model=Person, max_retries=0
        )
    )

    assert len(pieces) > 2
    assert isinstance(pieces[-1].name, str)
    assert isinstance(pieces[-1].age, int)


def test_a_message_of_anthropics_is_of_a_class() -> None:
    plain = Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS)
    asked = instructor.from_anthropic(plain, mode=Mode.ANTHROPIC_TOOLS)
    found = asked.create(
        model=MODEL, messages=HI, max_tokens=300, response_model=Person, max_retries=0
    )

    assert isinstance(found, Person)


def test_errors_are_the_librarys() -> None:
    with pytest.raises(Exception, match="another") as failed:
        client(Mode.TOOLS).create(model="another", messages=HI, response_model=Person)
    causes: list[BaseException | None] = [failed.value, failed.value.__cause__]
    assert any(isinstance(cause, openai.NotFoundError) for cause in causes) or (
        "NotFoundError" in repr(failed.value)
    )
