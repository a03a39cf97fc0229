"""Sampling parameters of a call of tokens, which stand in an object of their own.

    {"model": ..., "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8, "n": 1, ...}}

Engines take `sampling_params.extra_args` for more fields of theirs, and kv_transfer_params among
them as if it stood at the top: so that no client may set it there either.

Source: vLLM 0.32.0, entrypoints/scale_out/token_in_token_out/protocol.py (GenerateRequest),
sampling_params.py (SamplingParams).
"""

from typing import Final

from pdgate.protocols.apis import GENERATE
from pdgate.protocols.call import Call, Json, parse_object
from pdgate.protocols.errors import BadRequest

SAMPLING: Final = "sampling_params"
EXTRA: Final = "extra_args"
MOST_BYTES: Final = 1 << 20
"""Of either, 4 ms a MiB for each look: they may allow or forbid every token of a large vocabulary."""


def sampling_of(call: Call) -> Json:
    """Fields of a call that say how its tokens are drawn, raw; the body itself for most. Raise BadRequest."""
    return object_in(call.body, SAMPLING) if call.path == GENERATE else call.body


def object_in(fields: Json, name: str) -> Json:
    """The fields of an object that is one of these fields; none where it is left out or null.

    Raises BadRequest.
    """
    raw = fields.get(name)
    if raw is None:
        return {}
    written = bytes(raw)
    if written == b"null":
        return {}
    if len(written) > MOST_BYTES:
        raise BadRequest(f"{name} is longer than {MOST_BYTES} bytes", param=name)
    if not written.startswith(b"{"):
        raise BadRequest(f"{name} must be an object", param=name)
    return parse_object(written)
