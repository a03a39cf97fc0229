"""Whatever is sampled through a schema's mask fits the schema."""

import json
import random
from typing import Any

import pytest

from pdgate.engine.constrained import schema
from pdgate.engine.constrained.automaton import Automaton
from pdgate.engine.constrained.schema import Unsupported

POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}


def drawn(found: Any, seed: int) -> Any:
    """An answer of a model that has no preferences."""
    return json.loads(walk(Automaton(schema.expression(found)), random.Random(seed)))


def walk(machine: Automaton, random: random.Random) -> str:
    state, text = machine.start, bytearray()
    while following := sorted(machine.next_bytes(state)):
        if machine.accepts(state) and random.random() < 0.2:
            break
        text.append(random.choice(following))
        reached = machine.follow(state, text[-1])
        assert reached is not None
        state = reached
    assert machine.accepts(state)
    return text.decode()


@pytest.mark.parametrize("seed", range(20))
def test_each_type_is_kept_to(seed: int) -> None:
    answer = drawn(
        {
            "type": "object",
            "title": "All",
            "$defs": {"Point": POINT},
            "properties": {
                "text": {"type": "string", "minLength": 2, "maxLength": 5},
                "count": {"type": "integer"},
                "share": {"type": "number"},
                "flag": {"type": "boolean"},
                "nothing": {"type": "null"},
                "unit": {"enum": ["°C", "°F", 3]},
                "one": {"const": {"a": [1, None]}},
                "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                "either": {"type": ["string", "null"], "maxLength": 3},
                "points": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/Point"},
                    "minItems": 1,
                    "maxItems": 2,
                },
                "ways": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "empty": {"type": "object", "properties": {}},
                "any": {},
            },
            "required": ["text", "points"],
            "additionalProperties": False,
        },
        seed,
    )

    assert 2 <= len(answer["text"]) <= 5
    assert isinstance(answer["count"], int)
    assert isinstance(answer["share"], int | float)
    assert isinstance(answer["flag"], bool)
    assert answer["nothing"] is None
    assert answer["unit"] in ("°C", "°F", 3)
    assert answer["one"] == {"a": [1, None]}
    assert answer["maybe"] is None or isinstance(answer["maybe"], int)
    assert answer["either"] is None or len(answer["either"]) <= 3
    assert 1 <= len(answer["points"]) <= 2
    assert all(point.keys() == {"x", "y"} for point in answer["points"])
    assert all(isinstance(way, bool) for way in answer["ways"].values())
    assert answer["empty"] == {}


@pytest.mark.parametrize("seed", range(10))
def test_any_object_is_one(seed: int) -> None:
    text = walk(Automaton(schema.any_object()), random.Random(seed))

    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"type": "string", "pattern": "a+"}, "pattern"),
        ({"type": "integer", "minimum": 3}, "minimum"),
        ({"type": "string", "format": "date"}, "format"),
        ({"type": "string", "minLength": 9, "maxLength": 3}, "minLength 9"),
        ({"type": "array", "minItems": -1}, "minItems"),
        ({"type": "what"}, "'what'"),
        ({"oneOf": [{"type": "string"}]}, "oneOf"),
        ({"allOf": [POINT, POINT]}, "allOf"),
        ({"enum": []}, "enum"),
        ({"$ref": "#/$defs/None"}, "#/$defs/None"),
        ({"$ref": "http://elsewhere"}, "$ref"),
        ({"$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"},
         "itself"),
        ({"type": "object", "properties": {"a": POINT}, "required": ["b"]}, "'b'"),
        ({"type": "object", "properties": {"a": {"properties": {"b": {"not": {}}}}}}, "a.b"),
        ([], "must be an object"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused_by_name(found: Any, named: str) -> None:
    with pytest.raises(Unsupported, match=named.replace("$", r"\$")):
        schema.expression(found)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        found = {"anyOf": [found]}

    with pytest.raises(Unsupported, match="deep"):
        schema.expression(found)
