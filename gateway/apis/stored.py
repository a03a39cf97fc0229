"""Responses that an engine keeps: only it can go on with one, or end it.

The id itself names the engine (protocols/response_id.py), for the ids that we have made; any other
is looked for where there is only one engine, and nowhere else.

The id says of which model the response is, too, so a key for certain models reads, ends and goes
on with theirs alone. Of an id that does not say it, the key has to be for all models of the engine.
"""

from collections.abc import Iterable

import msgspec

from pdgate.gateway.security.authenticator import KeyState
from pdgate.protocols import response_id
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import Call
from pdgate.protocols.errors import NotFound, PermissionDenied
from pdgate.scheduling.endpoint import Endpoint


def owner(stored: str, fleet: Iterable[Endpoint]) -> Endpoint | None:
    endpoints = list(fleet)
    tag, _ = response_id.tags_in(stored)
    for endpoint in endpoints:
        if tag and response_id.tag(endpoint.instance.id) == tag:
            return endpoint
    return endpoints[0] if len(endpoints) == 1 else None


def placed(call: Call, fleet: Iterable[Endpoint], key_state: KeyState | None = None) -> Call:
    """The call, bound to the engine that has what it goes on with, if it goes on with anything.

    Raises NotFound, PermissionDenied for what a key is not for.
    """
    if call.path != RESPONSES or call.passed is not None:
        return call
    before = call.value("previous_response_id")
    if before is None:
        return call
    found = owner(before, fleet) if isinstance(before, str) else None
    if key_state is not None and key_state.key.models:
        if found is None:
            # Whichever engine reads it may have it from another model's call.
            raise _not_kept(before, "previous_response_id")
        _check(key_state, before, found, "previous_response_id")
    # Of what no engine has, one will say so in its own words.
    return call if found is None else msgspec.structs.replace(call, at=found.instance.id)


def kept_at(
    stored: str, fleet: Iterable[Endpoint], key_state: KeyState | None = None
) -> tuple[str, str | None]:
    """The engine's id, and the response's model, or any that the engine serves.

    Raises NotFound, PermissionDenied.
    """
    found = owner(stored, fleet)
    if found is None:
        raise _not_kept(stored, "response_id")
    if key_state is not None and key_state.key.models:
        _check(key_state, stored, found, "response_id")
    return found.instance.id, _model(stored, found) or min(found.models, default=None)


def _check(key_state: KeyState, stored: str, at: Endpoint, param: str) -> None:
    """Raises PermissionDenied if the key is not for the response's model."""
    model = _model(stored, at)
    asks = at.models if model is None else (model,)
    if not all(map(key_state.may_ask, asks)):
        raise PermissionDenied("this API key may not ask for that response", param=param)


def _model(stored: str, at: Endpoint) -> str | None:
    """None if the id does not say it, or a model that the engine serves no more."""
    _, tag = response_id.tags_in(stored)
    return next((model for model in at.models if response_id.tag(model) == tag), None)


def _not_kept(stored: object, param: str) -> NotFound:
    return NotFound(f"no engine here keeps a response {stored!r}", param=param)
