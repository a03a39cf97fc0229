"""JSON schema -> which bytes an answer may be.

Every answer fits the schema; not everything that fits is an answer. Objects have all their
properties, in the schema's order and without spaces, and what the schema leaves unbounded is
bounded here, since a random model hardly ever closes a string by itself:

    a string without maxLength     up to 16 characters, printable ASCII
    an array without maxItems      up to 3 items
    a number                       up to 6 digits, and 3 after the point
    any JSON                       2 levels deep, 2 items each

Source: JSON Schema 2020-12, sections "Validation" and "Applicator".
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from pdgate.engine.constrained.automaton import (
    ByteOf,
    Chain,
    Either,
    Expression,
    Literal,
    Repeat,
    TooBig,
)

MOST_CHARACTERS: Final = 16
MOST_ITEMS: Final = 3
LONGEST_NAMED: Final = 4096
"""Of what a schema may ask for by minLength or minItems."""

MOST_PARTS: Final = 1_000
"""Of a schema: schemas within it, each as often as it is read. They are read in 10 ms."""

ANY_DEPTH: Final = 2
ANY_ITEMS: Final = 2

SAYS_NOTHING: Final = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated",
        "description", "examples", "name", "readOnly", "strict", "title", "writeOnly",
    }
)  # fmt: skip
"""Keywords that no answer has to obey."""

KNOWN: Final = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
}

_DIGIT: Final = ByteOf(frozenset(b"0123456789"))
_MINUS: Final = Repeat(Literal(b"-"), 0, 1)
_WHOLE: Final = Either(
    (Literal(b"0"), Chain((ByteOf(frozenset(b"123456789")), Repeat(_DIGIT, 0, 5))))
)
_INTEGER: Final = Chain((_MINUS, _WHOLE))
_NUMBER: Final = Chain(
    (_INTEGER, Repeat(Chain((Literal(b"."), Repeat(_DIGIT, 1, 3))), 0, 1)),
)
_CHARACTER: Final = ByteOf(frozenset(range(0x20, 0x7F)) - frozenset(b'"\\'))
_SIMPLE: Final[Mapping[str, Expression]] = {
    "integer": _INTEGER,
    "number": _NUMBER,
    "boolean": Either((Literal(b"true"), Literal(b"false"))),
    "null": Literal(b"null"),
}


class Unsupported(ValueError):
    """The schema asks for what this engine does not keep to."""


def expression(schema: Any) -> Expression:
    """Raises Unsupported, automaton.TooBig."""
    try:
        return _SchemaReader(schema).read(schema, "the schema")
    except RecursionError:
        raise Unsupported("the schema is nested too deeply") from None


def any_object() -> Expression:
    return _any_object(ANY_DEPTH)


def exactly(value: Any) -> Expression:
    """Expression of a value as json.dumps writes it: the names and texts of other alphabets are escaped."""
    return Literal(json.dumps(value, separators=(",", ":")).encode())


def object_of(members: Sequence[tuple[str, Expression]]) -> Expression:
    parts: list[Expression] = []
    for index, (name, value) in enumerate(members):
        parts += [Literal(b"," if index else b"{"), exactly(name), Literal(b":"), value]
    return Chain((*(parts or [Literal(b"{")]), Literal(b"}")))


def array_of(item: Expression, least: int, most: int) -> Expression:
    return _listed(b"[", item, least, most, b"]")


class _SchemaReader:
    """
    Args:
        root: What `$ref` refers to.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[str, Expression] = {}
        self._open: set[str] = set()
        self._parts = 0

    def read(self, schema: Any, at: str) -> Expression:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise TooBig(f"too big: a schema may have {MOST_PARTS} parts at most")
        if schema is True:
            return _any(ANY_DEPTH)
        if not isinstance(schema, Mapping):
            raise Unsupported(f"{at} must be an object")
        said = {key: value for key, value in schema.items() if key not in SAYS_NOTHING}
        if not said:
            return _any(ANY_DEPTH)
        if "const" in said:
            _only(said, {"const", "type"}, at)
            return exactly(said["const"])
        if "enum" in said:
            _only(said, {"enum", "type"}, at)
            return Either(tuple(exactly(value) for value in _some(said["enum"], f"{at}.enum")))
        for word in ("anyOf", "allOf"):
            if word in said:
                return self._of(word, said, at)
        if "$ref" in said:
            _only(said, {"$ref"}, at)
            return self._referred(said["$ref"], at)
        return self._typed(said, at)

    def _of(self, word: str, said: Mapping[str, Any], at: str) -> Expression:
        _only(said, {word}, at)
        inner = _some(said[word], f"{at}.{word}")
        if word == "allOf" and len(inner) > 1:
            raise Unsupported(f"{at}: allOf of several schemas is not supported by this engine")
        return Either(tuple(self.read(one, f"{at}.{word}") for one in inner))

    def _referred(self, name: Any, at: str) -> Expression:
        if not isinstance(name, str) or not name.startswith("#"):
            raise Unsupported(f"{at}: $ref must name a part of the schema itself")
        if name in self._open:
            raise Unsupported(f"{at}: {name} refers to itself, which this engine does not support")
        if name not in self._known:
            found = self._root
            for key in name.split("/")[1:]:
                key = key.replace("~1", "/").replace("~0", "~")
                if not isinstance(found, Mapping) or key not in found:
                    raise Unsupported(f"{at}: there is no {name}")
                found = found[key]
            self._open.add(name)
            self._known[name] = self.read(found, name)
            self._open.remove(name)
        return self._known[name]

    def _typed(self, said: Mapping[str, Any], at: str) -> Expression:
        kind = said.get("type", "object" if "properties" in said else None)
        if isinstance(kind, list) and kind:
            return Either(tuple(self._typed(_as(one, said), at) for one in kind))
        _only(said, {"type"} | KNOWN.get(str(kind), frozenset()), at)
        match kind:
            case "object":
                return self._object(said, at)
            case "array":
                least, most = _bounds(said, "minItems", "maxItems", MOST_ITEMS, at)
                return array_of(self.read(said.get("items", {}), f"{at}.items"), least, most)
            case "string":
                least, most = _bounds(said, "minLength", "maxLength", MOST_CHARACTERS, at)
                return _string(least, most)
            case str() if kind in _SIMPLE:
                return _SIMPLE[kind]
        raise Unsupported(f"{at}: the type {kind!r} is not supported by this engine")

    def _object(self, said: Mapping[str, Any], at: str) -> Expression:
        properties = said.get("properties") or {}
        more = said.get("additionalProperties")
        if not isinstance(properties, Mapping):
            raise Unsupported(f"{at}.properties must be an object")
        required = said.get("required") or []
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise Unsupported(f"{at}.required must be a list of names")
        for name in required:
            if name not in properties:
                raise Unsupported(f"{at}: {name!r} is required and is no property")
        if properties:
            return object_of(
                [(name, self.read(one, f"{at}.{name}")) for name, one in properties.items()]
            )
        if more is False or (more is None and "properties" in said):
            return Literal(b"{}")
        if more is None or more is True:
            return any_object()
        return _members(self.read(more, f"{at}.additionalProperties"))


def _as(kind: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """One of several types, with the keywords that are about it."""
    others = {word for name, words in KNOWN.items() if name != kind for word in words}
    return {key: value for key, value in said.items() if key not in others} | {"type": kind}


def _only(said: Mapping[str, Any], known: frozenset[str] | set[str], at: str) -> None:
    """Raises Unsupported rather than to answer what the schema forbids."""
    if unknown := sorted(said.keys() - known):
        raise Unsupported(f"{at}: {unknown[0]} is not supported by this engine here")


def _some(found: Any, at: str) -> Sequence[Any]:
    if not isinstance(found, list) or not found:
        raise Unsupported(f"{at} must be a list that is not empty")
    return found


def _bounds(said: Mapping[str, Any], low: str, high: str, default: int, at: str) -> tuple[int, int]:
    least = said.get(low, 0)
    most = said.get(high, max(least, default) if isinstance(least, int) else 0)
    for name, count in ((low, least), (high, most)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise Unsupported(f"{at}.{name} must be an integer of at least 0")
    if not least <= most or least > LONGEST_NAMED:
        raise Unsupported(f"{at}: nothing has {low} {least} and {high} {most} here")
    return least, min(most, max(least, default))


def _string(least: int, most: int) -> Expression:
    return Chain((Literal(b'"'), Repeat(_CHARACTER, least, most), Literal(b'"')))


def _listed(begin: bytes, item: Expression, least: int, most: int, end: bytes) -> Expression:
    if most == 0:
        return Literal(begin + end)
    more = Chain((Literal(b","), item))
    some = Chain((item, Repeat(more, max(0, least - 1), most - 1)))
    return Chain((Literal(begin), some if least else Repeat(some, 0, 1), Literal(end)))


def _members(value: Expression) -> Expression:
    return _listed(
        b"{", Chain((_string(1, MOST_CHARACTERS), Literal(b":"), value)), 0, ANY_ITEMS, b"}"
    )


@cache
def _any(depth: int) -> Expression:
    kinds = [_string(0, MOST_CHARACTERS), _NUMBER, _SIMPLE["boolean"], _SIMPLE["null"]]
    if depth > 0:
        kinds += [array_of(_any(depth - 1), 0, ANY_ITEMS), _any_object(depth - 1)]
    return Either(tuple(kinds))


def _any_object(depth: int) -> Expression:
    return _members(_any(depth))
