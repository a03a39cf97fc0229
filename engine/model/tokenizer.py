"""Text <-> token ids, with what a model folder says about its special tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from pdgate.engine.model.config import token_ids


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """
    Attributes:
        eos_ids: Any of them ends an answer.
        special: Names that a chat template may use: bos_token, eos_token, ...
        chat_template: Jinja source; None if the model has none.
    """

    inner: tokenizers.Tokenizer
    eos_ids: frozenset[int]
    special: dict[str, str]
    chat_template: str | None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """`special` adds what the model puts around every text, often a BOS.

        A lone surrogate, which JSON can carry and UTF-8 cannot, becomes a question mark.
        """
        clean = text.encode(errors="replace").decode()
        return list(self.inner.encode(clean, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self.inner.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """One token as text, special ones too; half a character reads as U+FFFD."""
        return self.decode([token_id], skip_special=False)


def load_folder(folder: Path) -> Tokenizer:
    settings = _json(folder / "tokenizer_config.json")
    special = {
        name: text
        for name, value in settings.items()
        if name.endswith("_token") and (text := _content(value)) is not None
    }
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = token_ids(_json(folder / "config.json").get("eos_token_id"))
    ends |= token_ids(_json(folder / "generation_config.json").get("eos_token_id"))
    if (end := inner.token_to_id(special.get("eos_token", ""))) is not None:
        ends |= {end}
    return Tokenizer(inner, ends, special, _chat_template(folder, settings))


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _content(value: Any) -> str | None:
    """A special token is a string, or an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.exists():
        return alone.read_text()
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None
