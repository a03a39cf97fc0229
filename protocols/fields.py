"""A JSON object whose values stay the bytes they came as, and are decoded one by one.

    fields = parse_object(b'{"model": "m", "n": 1.0}')
    value(fields, "model")       "m"
    encode(fields)               as it came, but for spaces

Apart from the calls that are made of it, as those are structs and this can be compiled.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pdgate.protocols.errors import BadRequest

Json = Mapping[str, Any]
Raw = msgspec.Raw

TOO_DEEP = "the request body is nested too deeply"

_object = msgspec.json.Decoder(dict[str, Raw])
_any = msgspec.json.Decoder()
encode = msgspec.json.encode


def parse_object(data: bytes) -> dict[str, Raw]:
    """The fields of a JSON object, each still encoded. Raises BadRequest."""
    try:
        if not data.isascii():
            # The decoder does not look into values, and what is no UTF-8 fails later.
            data.decode()
        return _object.decode(data)
    except UnicodeDecodeError:
        return _lenient(data)
    except msgspec.ValidationError:
        raise BadRequest("the request body must be a JSON object") from None
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except msgspec.DecodeError:
        return _lenient(data)


def _lenient(data: bytes) -> dict[str, Raw]:
    """What Python's json accepts beyond the standard, as the engines read with it.

    That is NaN and Infinity, lone surrogates, a byte order mark, UTF-16 and UTF-32.
    """
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


def value(fields: Json, name: str, default: Any = None) -> Any:
    """One field, decoded; `default` if it is missing or null. Raises BadRequest."""
    found = fields.get(name)
    if found is None:
        return default
    if isinstance(found, Raw):
        try:
            found = _any.decode(found)
        except msgspec.DecodeError:
            found = _lenient_value(found)
        except RecursionError:
            # It passed as raw JSON, but here the stack is deeper.
            raise BadRequest(TOO_DEEP) from None
    return default if found is None else found


def _lenient_value(raw: Raw) -> Any:
    try:
        return json.loads(bytes(raw))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
