"""How urgent a call is: `x-priority: 0` (most) to `7` (least), the scale of RFC 9218.

A key has an urgency of its own, which is what its calls have that say nothing, and the most
that they may say: otherwise all would be most urgent soon.
"""

from pdgate.gateway.heads import Heads
from pdgate.protocols.errors import BadRequest
from pdgate.scheduling.admission import LEAST_URGENT

NAME = "x-priority"
_NAME = NAME.encode()
_LEVELS = {str(level).encode(): level for level in range(LEAST_URGENT + 1)}


def urgency(heads: Heads, own: int) -> int:
    """`own`: of the caller's key. Raises BadRequest for what is not on the scale."""
    found = heads.named.get(_NAME)
    if found is None:
        return own
    said = _LEVELS.get(found.strip())
    if said is None:
        raise BadRequest(f"{NAME} must be a number from 0 to {LEAST_URGENT}", param=NAME)
    return max(said, own)
