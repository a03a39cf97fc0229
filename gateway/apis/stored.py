"""Responses that an engine keeps: only it can go on with one, or end it.

The id itself names the engine (protocols/response_id.py), for the ids that we have made; any other
is looked for where there is only one engine, and nowhere else.

The id says of which model the response is, too, so a key for certain models reads, ends and goes
on with theirs alone. Of an id that does not say it, the key has to be for all models of the engine.
"""

from collections.abc import Iterable

import msgspec

from pdgate.gateway.security.door import Holder
from pdgate.protocols import response_id
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import Call
from pdgate.protocols.errors import Forbidden, NotFound
from pdgate.scheduling.candidate import Candidate


def owner(stored: str, fleet: Iterable[Candidate]) -> Candidate | None:
    candidates = list(fleet)
    tag, _ = response_id.tags_in(stored)
    for candidate in candidates:
        if tag and response_id.tag(candidate.instance.id) == tag:
            return candidate
    return candidates[0] if len(candidates) == 1 else None


def placed(call: Call, fleet: Iterable[Candidate], holder: Holder | None = None) -> Call:
    """The call, bound to the engine that has what it goes on with, if it goes on with anything.

    Raises NotFound, Forbidden for what a key is not for.
    """
    if call.path != RESPONSES or call.passed is not None:
        return call
    before = call.value("previous_response_id")
    if before is None:
        return call
    found = owner(before, fleet) if isinstance(before, str) else None
    if holder is not None and holder.key.models:
        if found is None:
            # Whichever engine reads it may have it from another model's call.
            raise _not_kept(before, "previous_response_id")
        _check(holder, before, found, "previous_response_id")
    # Of what no engine has, one will say so in its own words.
    return call if found is None else msgspec.structs.replace(call, at=found.instance.id)


def kept_at(
    stored: str, fleet: Iterable[Candidate], holder: Holder | None = None
) -> tuple[str, str | None]:
    """The engine's id, and the response's model, or any that the engine serves.

    Raises NotFound, Forbidden.
    """
    found = owner(stored, fleet)
    if found is None:
        raise _not_kept(stored, "response_id")
    if holder is not None and holder.key.models:
        _check(holder, stored, found, "response_id")
    return found.instance.id, _model(stored, found) or min(found.models, default=None)


def _check(holder: Holder, stored: str, at: Candidate, param: str) -> None:
    """Raises Forbidden if the key is not for the response's model."""
    model = _model(stored, at)
    asks = at.models if model is None else (model,)
    if not all(map(holder.may_ask, asks)):
        raise Forbidden("this API key may not ask for that response", param=param)


def _model(stored: str, at: Candidate) -> str | None:
    """None if the id does not say it, or a model that the engine serves no more."""
    _, tag = response_id.tags_in(stored)
    return next((model for model in at.models if response_id.tag(model) == tag), None)


def _not_kept(stored: object, param: str) -> NotFound:
    return NotFound(f"no engine here keeps a response {stored!r}", param=param)
