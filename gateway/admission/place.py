"""A call's place in the line: whose it is, how large, and how urgent.

How urgent a call is, it may say itself:

    x-priority: 0    most urgent, to 7, least: the scale of RFC 9218

A key has an urgency of its own, which is what its calls have that say nothing, and the most that
they may say: otherwise all would be most urgent soon.
"""

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.protocols.apis import STORED, Kind
from pdgate.protocols.call import Call
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.priority import LEAST_URGENT, ORDINARY
from pdgate.scheduling.admission import LinePlace

NAME = "x-priority"
_NAME = NAME.encode()
_LEVELS = {str(level).encode(): level for level in range(LEAST_URGENT + 1)}


def urgency(headers: RequestHeaders, own: int) -> int:
    """`own`: of the caller's key. Raises BadRequest for what is not on the scale."""
    found = headers.named.get(_NAME)
    if found is None:
        return own
    said = _LEVELS.get(found.strip())
    if said is None:
        raise BadRequest(f"{NAME} must be a number from 0 to {LEAST_URGENT}", param=NAME)
    return max(said, own)


def place_of(call: Call, headers: RequestHeaders, key_state: KeyState | None) -> LinePlace | None:
    """Return the place of a call in line; None if it takes nothing that calls wait for. Raise BadRequest."""
    if call.api is not None and (call.api.kind is Kind.COUNTS or call.api is STORED):
        return None
    own, name = (ORDINARY, "") if key_state is None else (key_state.priority, key_state.name)
    # Few say it: no call of a function for the others.
    if _NAME in headers.named:
        own = urgency(headers, own)
    return LinePlace(own, name, call.prompt_tokens, call=call)
