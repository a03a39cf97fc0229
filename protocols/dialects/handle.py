"""Handle of the KV in prefill's answer, as raw as it came, checked to be of the wire that is spoken.

A prefill engine of another generation, or with another connector, answers 200 all the same, and a
decode engine that gets a stranger's handle recomputes the prompt in silence, or dies. So the names that
a wire cannot do without are looked for, and the error says what was expected and what came.
"""

from typing import Final

from pdgate.protocols.call import Json, Raw, parse_object
from pdgate.protocols.errors import BadRequest, EngineFailed

NULL: Final = Raw(b"null")
MOST_NAMES: Final = 12
"""Of those that came, in an error."""


def found(reply: Json, field: str, *names: str, empty: bool = False) -> Raw | None:
    """The object in this field of prefill's answer; None for {} where that may be.

    Raises EngineFailed, also where one of `names` is not in it.
    """
    raw = reply.get(field)
    if not isinstance(raw, Raw) or raw == NULL:
        raise EngineFailed(f"prefill answered without {field}")
    try:
        there = parse_object(bytes(raw))
    except BadRequest as error:
        raise EngineFailed(f"prefill's {field} is no object: {error}") from None
    if not there and empty:
        return None
    if missing := [name for name in names if there.get(name, NULL) == NULL]:
        raise EngineFailed(
            f"prefill's {field} is of another wire: {', '.join(missing)} expected, "
            f"and it has {', '.join(sorted(there)[:MOST_NAMES]) or 'nothing'}"
        )
    return raw
