"""Which engine has a response that was kept: the only one that can go on with it, or end it.

What says so is the id itself (protocols/response_id.py), for the ids that we have made; any other
is looked for where there is only one engine, and nowhere else.
"""

from collections.abc import Iterable

import msgspec

from pdgate.protocols import response_id
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import Call
from pdgate.protocols.errors import NotFound
from pdgate.scheduling.candidate import Candidate


def owner(stored: str, fleet: Iterable[Candidate]) -> Candidate | None:
    candidates = list(fleet)
    tag = response_id.tag_in(stored)
    for candidate in candidates:
        if tag and response_id.tag(candidate.instance.id) == tag:
            return candidate
    return candidates[0] if len(candidates) == 1 else None


def placed(call: Call, fleet: Iterable[Candidate]) -> Call:
    """The call, bound to the engine that has what it goes on with, if it goes on with anything."""
    if call.path != RESPONSES or call.passed is not None:
        return call
    before = call.value("previous_response_id")
    found = owner(before, fleet) if isinstance(before, str) else None
    # Of what nobody has, some engine will say so in its own words.
    return call if found is None else msgspec.structs.replace(call, at=found.instance.id)


def kept_at(stored: str, fleet: Iterable[Candidate]) -> tuple[str, str | None]:
    """The engine's id, and a model that it serves. Raises NotFound."""
    found = owner(stored, fleet)
    if found is None:
        raise NotFound(f"no engine here keeps a response {stored!r}", param="response_id")
    return found.instance.id, min(found.models, default=None)
