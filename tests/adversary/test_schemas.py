"""Time and memory of an engine: what a schema may cost that says what an answer has to be."""

from random import Random
from typing import Any

import pytest

from pdgate.engine.api import constraints
from pdgate.engine.constrained import automaton, grammar, schema
from pdgate.engine.constrained.automaton import Automaton, TooBig
from pdgate.engine.constrained.grammar import Grammar
from pdgate.protocols.errors import BadRequest
from tests.support.cpu import CALLBACK_SECONDS, ROUNDS, TRIES, cpu_seconds

TEXT = b'abcdefghijklmnopqrstuvwxyz",:{}[]0123456789 '


def nested(depth: int, **around: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        found = {**around, "items": found}
    return found


TOO_BIG: dict[str, dict[str, Any]] = {
    "wide": {"properties": {f"p{n}": {} for n in range(1500)}},
    "deep": nested(30, type="array", minItems=3),
    # Each type reads the items anew: 4 ** 150 times.
    "exponential": nested(150, type=["array"] * 4),
    "by reference": {
        "$defs": {
            **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)},
            "d60": {"type": "string"},
        },
        "$ref": "#/$defs/d0",
    },
    # All of them are followed with each byte.
    "ambiguous": {"anyOf": [{"type": "string", "maxLength": n % 16 + 1} for n in range(600)]},
    "long": {"type": "array", "minItems": 4096, "items": {"type": "string", "minLength": 4096}},
}

TAKEN: dict[str, dict[str, Any]] = {
    "properties": {"properties": {f"p{n}": {"type": "integer"} for n in range(300)}},
    "alternatives": {"enum": list(range(3500))},
    "names": {"properties": {f"p{n}" * 5: {"type": "boolean"} for n in range(200)}},
}


class Vocabulary:
    """Of 4,000 tokens, of up to 6 bytes each."""

    size = 4000
    ends = ()

    def __init__(self) -> None:
        draw = Random(1)
        self.by_first_byte: dict[int, list[tuple[int, bytes]]] = {}
        for token in range(self.size):
            value = bytes(draw.choices(TEXT, k=draw.randint(1, 6)))
            self.by_first_byte.setdefault(value[0], []).append((token, value))


def grammar_of(found: Any) -> Grammar:
    return Grammar(schema.expression(found), Vocabulary())  # type: ignore[arg-type]


@pytest.mark.parametrize("found", TOO_BIG.values(), ids=TOO_BIG.keys())
def test_what_would_cost_too_much_is_refused_soon(found: dict[str, Any]) -> None:
    """One of 20 KB took 4.2 s, and the exponential one for ever."""

    def refused() -> None:
        with pytest.raises(TooBig, match="too big"):
            Automaton(schema.expression(found))

    assert cpu_seconds(refused) <= CALLBACK_SECONDS


@pytest.mark.parametrize("found", TAKEN.values(), ids=TAKEN.keys())
def test_large_ones_that_mean_one_thing_are_taken(found: dict[str, Any]) -> None:
    """Of 8 to 20 KB."""
    assert cpu_seconds(lambda: Automaton(schema.expression(found))) <= CALLBACK_SECONDS


def test_the_costliest_mask() -> None:
    """With 600 alternatives, and not as many as there may be, one took 0.3 s."""
    found = {"anyOf": [{"type": "string", "maxLength": n % 16 + 1} for n in range(62)]}
    # Made beforehand, as each remembers what it has walked.
    fresh = [grammar_of(found) for _ in range(ROUNDS * TRIES)]

    def mask() -> None:
        guided = fresh.pop()
        state = guided.after(guided.automaton.start, b'"')
        assert state is not None
        guided.mask(state)

    assert cpu_seconds(mask) <= CALLBACK_SECONDS


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was forgotten is found again."""
    found = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    once = masks_on_the_way(grammar_of(found))
    monkeypatch.setattr(automaton, "MOST_STEPS_KEPT", 50)
    monkeypatch.setattr(grammar, "MOST_MASK_BYTES", 3 * Vocabulary.size)
    forgetful = grammar_of(found)

    assert masks_on_the_way(forgetful) == once
    assert len(forgetful.automaton._after) <= 50
    assert len(forgetful._masks) <= 3


def masks_on_the_way(guided: Grammar) -> list[bytes]:
    found, state = [], guided.automaton.start
    for byte in b'{"a":"some text","b":123':
        found.append(guided.mask(state).tobytes())
        after = guided.automaton.follow(state, byte)
        assert after is not None
        state = after
    return found


def test_what_is_long_is_not_read() -> None:
    """And not kept as the key of a grammar."""
    body = {"structured_outputs": {"choice": ["x" * constraints.MOST_BYTES]}}
    with pytest.raises(BadRequest, match="longer than 65536"):
        constraints.grammar(None, body)  # type: ignore[arg-type]
