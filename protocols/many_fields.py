"""JSON object of few fields, read from a body that could have many.

Each field at the top becomes a name and a value, half a microsecond each: a body of nothing else takes
50 ms a MiB, where one of a long text takes 0.3. The decoder builds them all before anything can count
them, but it asks an Enum's `_missing_` for each name that it does not know, and takes what it says.

What is in the fields is passed over. A list or an object costs most of it, 5 ns with CPython 3.11 and 11 with 3.13, three bytes
each: 16 MiB of them take 33 and 55 ms, so in a long document they are counted before.

Apart from fields.py, as that is compiled.
"""

import secrets
from enum import Enum
from threading import local
from typing import Any, Final, cast

import msgspec

MOST_FIELDS: Final = 1000

LONG_BYTES: Final = 6 << 20
"""Of a document whose lists and objects are counted, at 0.6 ms a MiB; a shorter one of nothing else takes 26 ms."""
MOST_CONTAINERS: Final = 2 << 20
"""Of a long one: beside 10 MiB of numbers 35 ms with Python 3.13. Brackets in texts count as well. Answers with
log-probabilities have one in 20 bytes, 840,000 in the longest.
"""


class TooManyFields(Exception):
    """The object has more than MOST_FIELDS."""


class _Counted(local):
    """A count per thread, as long bodies are read aside."""

    names = 0


_counted = _Counted()


class _Name(Enum):
    NONE = secrets.token_hex(16)
    """There has to be one. It would be a key, and not be counted, so it is one that no client knows."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        _counted.names += 1
        if _counted.names > MOST_FIELDS:
            # Ends the reading; the decoder makes an error of its own of it.
            raise TooManyFields
        return value


_object: Final = msgspec.json.Decoder(dict[_Name, msgspec.Raw])


def parse(data: bytes) -> dict[str, msgspec.Raw]:
    """Raises TooManyFields, and as the decoder does."""
    _counted.names = 0
    try:
        return cast(dict[str, msgspec.Raw], _object.decode(data))
    except msgspec.ValidationError:
        if _counted.names > MOST_FIELDS:
            raise TooManyFields from None
        raise


def has_too_many_containers(document: bytes) -> bool:
    """Whether a long document has more lists and objects than are passed over in one callback."""
    return (
        len(document) > LONG_BYTES and document.count(b"[") + document.count(b"{") > MOST_CONTAINERS
    )
