"""Model cards: what an engine says of its models (GET /v1/models), as far as others may see it.

The cards are shown by the gateway as engines wrote them, beside those of all other engines. So a card
that cannot be written again (a lone surrogate, NaN, nesting without end), or is too much to
show, is left out, and its model is not served by that engine: it would break the page for all.

Source of the shape: OpenAI API reference, "Models"; vLLM 0.32.0, entrypoints/openai/models.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

MOST_CARDS: Final = 1000
MOST_CARD_BYTES: Final = 16 << 10
MOST_CARDS_BYTES: Final = 128 << 10
"""Of all cards of an engine, of which vLLM writes 600 each. Objects in objects take 100 ms a MiB."""
MOST_DEPTH: Final = 16
MOST_TOKENS: Final = 1 << 40
STRICT: Final = ("vllm", "pdgate")
"""Owners of models, as cards name them, whose engines refuse what is longer than `max_model_len`.

Others may cut it, as SGLang does with --allow-auto-truncate, of prompts and of answers."""
LONGEST_ID: Final = 512
"""Characters, all of them printable: ids are in logs and labels."""

Card = dict[str, Any]


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


_models: Final = msgspec.json.Decoder(_Models).decode
_card: Final = msgspec.json.Decoder(dict[str, Any]).decode


def read(body: bytes) -> Sequence[Card]:
    """Those that can be shown. Raises ValueError for what is no list of models, or too long."""
    if len(body) > MOST_CARDS_BYTES:
        raise ValueError(f"its models take more than {MOST_CARDS_BYTES} bytes")
    try:
        found = _models(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no list of models: {error}") from None
    if len(found) > MOST_CARDS:
        raise ValueError(f"more than {MOST_CARDS} models")
    return [card for card in map(_shown, found) if card is not None]


def lengths(cards: Sequence[Card]) -> dict[str, int]:
    """Model -> tokens of its context, where it is said; an adapter's is that of the model it changes."""
    own = {card["id"]: found for card in cards if (found := _length(card)) is not None}
    return {name: own[parent] for name, parent in parents(cards).items() if parent in own} | own


def parents(cards: Sequence[Card]) -> dict[str, str]:
    """Adapter (LoRA) -> the model that it changes, by whatever name."""
    return {
        card["id"]: parent
        for card in cards
        if isinstance(parent := card.get("parent"), str) and parent != card["id"]
    }


def strict(cards: Sequence[Card]) -> bool:
    """Whether the engine refuses what is longer than it says, and cuts none of it."""
    return bool(cards) and all(card.get("owned_by") in STRICT for card in cards)


def _length(card: Card) -> int | None:
    found = card.get("max_model_len")
    return found if type(found) is int and 0 < found <= MOST_TOKENS else None


def _shown(raw: msgspec.Raw) -> Card | None:
    """Raises ValueError for what is no card at all."""
    if len(raw) > MOST_CARD_BYTES:
        return None
    try:
        card = _card(raw)
    except msgspec.ValidationError as error:
        raise ValueError(f"no card of a model: {error}") from None
    # ValueError: a number of more digits than Python reads.
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    name = card.get("id")
    if not isinstance(name, str):
        raise ValueError("a card without an id")  # noqa: TRY004 (a value of theirs, not a type of ours)
    if not 0 < len(name) <= LONGEST_ID or not name.isprintable():
        return None
    return card if _is_shallow(card) else None


def _is_shallow(card: Card) -> bool:
    level: list[Any] = [card]
    for _ in range(MOST_DEPTH):
        inside: list[Any] = []
        for found in level:
            if isinstance(found, dict):
                inside += found.values()
            elif isinstance(found, list):
                inside += found
        if not inside:
            return True
        level = inside
    return False
