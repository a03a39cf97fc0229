"""Messages of the signal plane: JSON, one answer for each message, in order.

    D says                                        P answers
    {"type": "handshake"}                         {"status": "ok", "timestamp": seconds}
    {"type": "kv_map_init", "kv_map": ...,        {"kv_map": ..., "nc_offset": 0}
     "nc_offset": 0}
    {"type": "lookup_all", "request_id": uid,     {"success": false}, or {"success": true,
     "block_ids_in_peer_device": [D's]}            "output_token": 7 or null,
                                                   "block_ids_in_peer_device": [P's]}
    {"type": "lookup_token", "request_id": uid}   {"success": false}, or
                                                  {"success": true, "output_token": 7}
    {"type": "abort", "request_id": uid}          {"status": "ok", "request_id": uid}, or
                                                  {"success": false} while it still leaves
    what P cannot do                              {"status": "error", "message": why}

`abort` is ours: D needs that request no more. The reference has no such message; it
ends its thread over one that it does not know, so we say it only to peers of our own kind
(kv_map.py). Blocks that D has already are null: the reference has no prefix cache.

`handshake` may carry the KV handshake, and a third frame the MAC: proof.py.

Frames: [b"", json] from and to D's DEALER, [identity, b"", json] at P's ROUTER; the identity
is D's "ip:api port".

Source: AWS Neuron's vLLM V0 fork, neuron_buffer.py (send_handler, recv_handler), zmq_util.py.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from pdgate.transfer.messenger.errors import HandOverError, Why

Message = dict[str, Any]
Blocks = Sequence[int | None]

MAX_BLOCKS: Final = 1 << 20
_WHYS: Final = {str(why): why for why in Why}


def handshake() -> Message:
    return {"type": "handshake"}


def welcome() -> Message:
    return {"status": "ok", "timestamp": time.time()}


def kv_map_init(kv_map: Message) -> Message:
    return {"type": "kv_map_init", **kv_map_answer(kv_map)}


def kv_map_answer(kv_map: Message) -> Message:
    # The first NeuronCore of the engine; there are none here.
    return {"kv_map": kv_map, "nc_offset": 0}


def lookup_all(uid: str, blocks: Blocks) -> Message:
    return {"type": "lookup_all", "request_id": uid, "block_ids_in_peer_device": list(blocks)}


def lookup_token(uid: str, blocks: Blocks) -> Message:
    return {"type": "lookup_token", "request_id": uid, "block_ids_in_peer_device": list(blocks)}


def abort(uid: str) -> Message:
    return {"type": "abort", "request_id": uid}


def not_yet() -> Message:
    return {"success": False}


def found(output_token: int | None, blocks: Sequence[int] | None = None) -> Message:
    """Token 0 is a token; None is for one that is not sampled yet."""
    if blocks is None:
        return {"success": True, "output_token": output_token}
    return {
        "success": True,
        "output_token": output_token,
        "block_ids_in_peer_device": list(blocks),
    }


def done(uid: str) -> Message:
    return {"status": "ok", "request_id": uid}


def error(message: str) -> Message:
    return {"status": "error", "message": message}


def unproven(message: str) -> Message:
    return error(f"{Why.UNPROVEN}: {message}")


def broken(failure: Exception) -> Message:
    return error(f"{Why.BROKEN}: {failure}")


def proven() -> Message:
    return {"status": "ok"}


def encode(message: Message) -> list[bytes]:
    return [b"", json.dumps(message).encode()]


def decode(frames: Sequence[bytes]) -> Message:
    """Raises ValueError for what is no message."""
    match frames:
        case [b"", data]:
            message = json.loads(data)
            if isinstance(message, dict):
                return message
    raise ValueError("not an empty frame and a JSON object")


def text(message: Message, name: str) -> str:
    """Raises ValueError."""
    said = message.get(name)
    if not isinstance(said, str) or not said:
        raise ValueError(f"{name} must be a string")
    return said


def blocks(message: Message) -> list[int | None]:
    """Raises ValueError."""
    said = message.get("block_ids_in_peer_device")
    if not isinstance(said, list) or len(said) > MAX_BLOCKS:
        raise ValueError("block_ids_in_peer_device must be a list")
    if not all(one is None or (type(one) is int and one >= 0) for one in said):
        raise ValueError("block_ids_in_peer_device must hold block ids")
    return said


def token(message: Message) -> int | None:
    """Raises ValueError."""
    said = message.get("output_token")
    if said is not None and (type(said) is not int or said < 0):
        raise ValueError("output_token must be a token id or null")
    return said


def raise_error(message: Message) -> None:
    """Raises HandOverError if the peer says that something is wrong."""
    if message.get("status") != "error":
        return
    said = str(message.get("message"))
    why, _, rest = said.partition(": ")
    raise HandOverError(_WHYS.get(why, Why.BROKEN), rest if why in _WHYS else said)
