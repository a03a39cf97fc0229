"""Ids of responses that say which engine has them.

    resp_<24 hexadecimal digits>_<8 of the engine's tag>

An engine keeps a response in its own memory, so what asks for it later has to go there. With the
tag in the id every process of every gateway finds it, also after a restart, and none remembers
anything. The tag is a hash of the instance's id: clients learn no name and no address by it.

Source: vLLM 0.32.0, entrypoints/openai/responses/protocol.py (ResponsesRequest.request_id): what
the caller sets is the id of the response.
"""

import hashlib
import re
import secrets

_is_ours = re.compile(r"resp_[0-9a-f]{24}_([0-9a-f]{8})").fullmatch


def new(instance_id: str) -> str:
    return f"resp_{secrets.token_hex(12)}_{tag(instance_id)}"


def tag(instance_id: str) -> str:
    return hashlib.sha256(instance_id.encode()).hexdigest()[:8]


def tag_in(response_id: str) -> str:
    """Empty if the id is not of this kind."""
    found = _is_ours(response_id)
    return "" if found is None else found[1]
