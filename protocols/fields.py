"""JSON object whose values stay the bytes they came as, and are decoded one by one.

    fields = parse_object(b'{"model": "m", "n": 1.0}')
    value(fields, "model")       "m"
    encode(fields)               as it came, but for spaces

Apart from the calls that are made of it, as those are structs and this can be compiled.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pdgate.protocols import many_fields
from pdgate.protocols.errors import BadRequest

Json = Mapping[str, Any]
Raw = msgspec.Raw

TOO_DEEP = "the request body is nested too deeply"

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for bytes of an engine: no JSON, no UTF-8, or too deep."""

FEW_BYTES: Final = 64 << 10
"""Longer bodies are read by a decoder that counts their fields, at 0.2 us for each."""
MOST_LENIENT_BYTES: Final = 256 << 10
"""Of a body that is no standard JSON: Python's json takes 60 ms a MiB, and again for each value."""
MOST_VALUE_BYTES: Final = 16 << 10
"""Of a value that is decoded, unless its reader expects more: 60 ms a MiB, a dozen in a call."""
MOST_LIST_BYTES: Final = 512 << 10
"""Of one that may be long, as tools are: 30 ms."""


MOST_COUNT: Final = 1 << 40
"""More than any call takes: what is said beyond is a mistake, and must not overflow what adds it up."""
_MOST_DIGITS: Final = 18
_COUNT: Final = re.compile(r"(?:\+|-(?=[0_]+(?:\.0+)?\Z))?([0-9]+(?:_[0-9]+)*)(?:\.0+)?")
"""Beyond ASCII there are digits that int() reads, too."""

_BEGIN_BYTES: Final = 64

_YES: Final = frozenset({"1", "on", "t", "true", "y", "yes"})

_object = msgspec.json.Decoder(dict[str, Raw])
_any = msgspec.json.Decoder()
encode = msgspec.json.encode


def parse_object(data: bytes) -> dict[str, Raw]:
    """The fields of a JSON object, each still encoded. Raises BadRequest."""
    try:
        if not data.isascii():
            # The decoder does not look into values, and what is no UTF-8 fails later.
            data.decode()
        if len(data) > FEW_BYTES:
            if many_fields.has_too_many_containers(data):
                most = many_fields.MOST_CONTAINERS
                raise BadRequest(f"the request body has more than {most} lists and objects")
            return many_fields.parse(data)
        return _object.decode(data)
    except UnicodeDecodeError as error:
        return _lenient(data, error)
    except many_fields.TooManyFields:
        most = many_fields.MOST_FIELDS
        raise BadRequest(f"the request body has more than {most} fields") from None
    except msgspec.ValidationError:
        raise BadRequest("the request body must be a JSON object") from None
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except msgspec.DecodeError as error:
        return _lenient(data, error)


def _lenient(data: bytes, why: Exception) -> dict[str, Raw]:
    """What Python's json accepts beyond the standard, as the engines read with it.

    That is NaN and Infinity, lone surrogates, a byte order mark, UTF-16 and UTF-32.
    """
    if len(data) > MOST_LENIENT_BYTES:
        raise BadRequest(f"the request body is not valid JSON: {why}")
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise BadRequest("the request body must be a JSON object")
        # Values keep a lone surrogate escaped, but a name must be text that can be written.
        "".join(fields).encode()
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from None
    return {name: Raw(json.dumps(value).encode()) for name, value in fields.items()}


def value(fields: Json, name: str, default: Any = None, most_bytes: int = MOST_VALUE_BYTES) -> Any:
    """One field, decoded; `default` if it is missing or null. Raises BadRequest."""
    found = fields.get(name)
    if found is None:
        return default
    if isinstance(found, Raw):
        if len(found) > most_bytes:
            raise BadRequest(f"{name} is longer than {most_bytes} bytes", param=name)
        try:
            found = _any.decode(found)
        except msgspec.DecodeError:
            found = _lenient_value(found)
        except RecursionError:
            # It passed as raw JSON, but here the stack is deeper.
            raise BadRequest(TOO_DEEP) from None
    return default if found is None else found


def first_in_list(raw: Raw) -> bytes:
    """The first byte of what a list has, a bracket if that is nothing; empty for what is no list."""
    # It may be megabytes.
    begin = bytes(memoryview(raw)[:_BEGIN_BYTES])
    if begin[:1] != b"[":
        return b""
    # Bodies that are meant to be read are indented.
    return (begin[1:].lstrip() or bytes(memoryview(raw)[1:]).lstrip())[:1]


def is_nothing(raw: Raw | None) -> bool:
    """Whether there is no prompt in it: left out, null, or an empty list."""
    if raw is None:
        return True
    # It may be megabytes.
    return bytes(memoryview(raw)[:4]) == b"null" or first_in_list(raw) == b"]"


def is_true(said: object) -> bool:
    """Whether a flag is true as engines read it, which take 1 and "yes" for true.

    Source: pydantic 2, "Conversion table", bool in lax mode; vLLM and SGLang read requests with it.
    """
    if said is True or said is False:
        return said
    if isinstance(said, str):
        return said.lower() in _YES
    return isinstance(said, int | float) and said == 1


def count_of(said: object) -> int | None:
    """A count as engines read one, which take 2.0 and "2" for 2; None for what is none, and below 0.

    Of a number with a fraction, which some take, it is what stands before the point.

    Source: pydantic 2, "Conversion table", int in lax mode.
    """
    if isinstance(said, int):
        return min(int(said), MOST_COUNT) if said >= 0 else None
    if isinstance(said, float):
        # Infinity and NaN are none.
        return min(int(said), MOST_COUNT) if 0 <= said < float("inf") else None
    found = _COUNT.fullmatch(said.strip()) if isinstance(said, str) else None
    if found is None:
        return None
    digits = found[1].replace("_", "").lstrip("0")
    return MOST_COUNT if len(digits) > _MOST_DIGITS else min(int(digits or "0"), MOST_COUNT)


def _lenient_value(raw: Raw) -> Any:
    try:
        return json.loads(bytes(raw))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        # More digits than Python reads.
        raise BadRequest(f"the request body is not valid JSON: {error}") from None
