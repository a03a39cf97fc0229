from typing import Any

import pytest

from pdgate.engine.model import builtin, chat
from pdgate.engine.model.tokenizer import Tokenizer

TOKENIZER = builtin.tokenizer()


def render(*messages: dict[str, Any]) -> str:
    return chat.render(TOKENIZER, messages)


def test_messages_become_text() -> None:
    text = render({"role": "developer", "content": "Be kind"}, {"role": "user", "content": "Hi"})

    assert text == "<s><|system|>Be kind<|end|><|user|>Hi<|end|><|assistant|>"


def test_parts_are_joined_and_what_is_no_text_is_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"text": "b"}]

    assert "<|user|>ab<|end|>" in render({"role": "user", "content": parts})


def test_a_message_without_content_is_empty() -> None:
    """An assistant's tool calls come with null."""
    assert "<|assistant|><|end|>" in render({"role": "assistant", "content": None})


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ messages[0].x.y }}", None])
def test_a_refusal_is_a_value_error(template: str | None) -> None:
    refusing = Tokenizer(TOKENIZER.inner, frozenset(), {}, template)

    with pytest.raises(ValueError, match="template"):
        chat.render(refusing, [{"role": "user", "content": "Hi"}])


def test_templates_cannot_reach_the_system() -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    hostile = Tokenizer(TOKENIZER.inner, frozenset(), {}, escape)

    with pytest.raises(ValueError, match="template"):
        chat.render(hostile, [{"role": "user", "content": "Hi"}])
