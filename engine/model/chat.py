"""Chat template: messages -> text, by the model's own.

Lenient about what OpenAI allows in a message: content may be null or a list of parts,
of which the text ones count. Templates run in a sandbox: they come with a model, and
models come from strangers.

Source: transformers 5, utils/chat_template_utils.py, for the names a template may use.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pdgate.engine.model.tokenizer import Tokenizer


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Raises ValueError for messages that the template refuses."""
    if tokenizer.chat_template is None:
        raise ValueError("this model has no chat template")
    try:
        return _compiled(tokenizer.chat_template).render(
            **tokenizer.special,
            **(extra or {}),
            messages=[{**message, "content": text_of(message)} for message in messages],
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise ValueError(f"the chat template refused the messages: {error}") from error


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; parts that are no text (images, audio) are left out."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(_text_of_part(part) for part in content)
    return content if isinstance(content, str) else ""


def _text_of_part(part: Any) -> str:
    if isinstance(part, Mapping):
        part = part.get("text") or part.get("refusal")
    return part if isinstance(part, str) else ""


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda spelling: datetime.now().strftime(spelling)
    return environment.from_string(source)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
