"""Handle of the KV in prefill's answer, its values as raw as they came, checked to be of the wire that is spoken.

A prefill engine of another generation, or with another connector, answers 200 all the same, and a
decode engine that gets a stranger's handle recomputes the prompt in silence, or dies. So the names that
a wire cannot do without are looked for, and the error says what was expected and what came.
"""

from typing import Final

import msgspec

from pdgate.protocols.call import Json, Raw, parse_object, value
from pdgate.protocols.errors import BadRequest, EngineFailed

_NULL: Final = Raw(b"null")
MOST_NAMES: Final = 12
"""Of those that came, in an error."""

MOST_CHOICES_BYTES: Final = 512 << 10
"""Of one choice of one token, and what it says of its KV: 30 ms, if it is of empty objects."""

_listed = msgspec.json.Decoder(list[dict[str, Raw]]).decode


def found(reply: Json, field: str, *names: str, empty: bool = False) -> Json:
    """The object in this field of prefill's answer. `empty`: it may be {}.

    Raises EngineFailed, also where one of `names` is not in it.
    """
    raw = reply.get(field)
    if not isinstance(raw, Raw) or raw == _NULL:
        raise EngineFailed(f"prefill answered without {field}; {', '.join(names)} expected in it")
    try:
        there = parse_object(bytes(raw))
    except BadRequest as error:
        raise EngineFailed(f"prefill's {field} is no object: {error}") from None
    missing = [name for name in names if there.get(name, _NULL) == _NULL]
    if missing and (there or not empty):
        raise EngineFailed(
            f"prefill's {field} is of another wire: {', '.join(missing)} expected, "
            f"and it has {', '.join(sorted(there)[:MOST_NAMES]) or 'nothing'}"
        )
    return there


def word(reply: Json, name: str) -> object:
    """A short value of prefill's answer; None if it is not there. Raises EngineFailed."""
    try:
        return value(reply, name)
    except BadRequest as error:
        # It is not the client that is wrong.
        raise EngineFailed(f"prefill's {name} cannot be read: {error}") from None


def only_choice(reply: Json) -> Json:
    """The choice of prefill's answer. Raise EngineFailed if there is not exactly one."""
    raw = reply.get("choices", _NULL)
    if len(raw) > MOST_CHOICES_BYTES:
        raise EngineFailed(f"prefill's choices are longer than {MOST_CHOICES_BYTES} bytes")
    try:
        choices = _listed(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise EngineFailed(f"prefill's choices cannot be read: {error}") from None
    if len(choices) != 1:
        raise EngineFailed(f"prefill answered {len(choices)} choices, and one was expected")
    return choices[0]
