"""Response ids that say which engine has them, and of which model they are.

    resp_<24 hexadecimal digits>_<8 of the engine's tag>_<8 of the model's>

An engine keeps a response in its own memory, so what asks for it later has to go there. With the
tag in the id every process of every gateway finds it, also after a restart, and none remembers
anything. A tag is a hash: clients learn no name and no address by it.

Engines serve several models (adapters), and look responses up by their whole id. So a client that
changes the model's tag has an id that no engine knows.

Source: vLLM 0.32.0, entrypoints/openai/responses/protocol.py (ResponsesRequest.request_id): what
the caller sets is the id of the response.
"""

import hashlib
import re
import secrets

_is_ours = re.compile(r"resp_[0-9a-f]{24}_([0-9a-f]{8})(?:_([0-9a-f]{8}))?").fullmatch


def new(instance_id: str, model: str | None) -> str:
    made = f"resp_{secrets.token_hex(12)}_{tag(instance_id)}"
    return made if model is None else f"{made}_{tag(model)}"


def tag(name: str) -> str:
    """Tag of an instance's id, or of a model."""
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]


def tags_in(response_id: str) -> tuple[str, str]:
    """The engine's and the model's; empty where the id does not say it."""
    found = _is_ours(response_id)
    return ("", "") if found is None else (found[1], found[2] or "")
