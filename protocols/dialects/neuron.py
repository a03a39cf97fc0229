"""Request ids of AWS Neuron's disaggregated inference (vLLM fork, ZMQ generation).

The peer's address travels in the request id, and the uid is where both meet:

    static 1P1D     cmpl-<uid> to both
    dynamic xPyD    cmpl-<uid>_<D ip>:<D api port> to prefill
                    cmpl-<uid>_<P ip>:<P api port> to decode

vLLM puts another "cmpl-" or "chatcmpl-" before and "-<prompt index>" behind. Decode
finds P's signal plane at P's API port + SIGNAL_PORT_OFFSET. Engines repeat the id in
their answers, so a relay must take the address out again (`public`).

Source: AWS Neuron documentation, "Disaggregated Inference", and the neuron fork of
vLLM (neuron DI proxy server, request id parsing in its connector).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pdgate.protocols.instance import Instance, Role

SIGNAL_PORT_OFFSET: Final = 1
ZMQ, STATIC, NIXL = "zmq", "static", "nixl"

_ID = re.compile(
    r"(?P<uid>.+?)_(?P<host>\[[0-9a-fA-F:.]+\]|[^_:\s]+):(?P<port>\d{1,5})(?:-(?P<index>\d{1,9}))?"
)


@dataclass(frozen=True, slots=True)
class PeerId:
    """A request id that names a peer; host without brackets."""

    uid: str
    host: str
    port: int
    index: int | None = None


def names_peer(uid: str, peer: Instance) -> str:
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    return f"cmpl-{uid}_{host}:{peer.port}"


def crossed(fleet: Iterable[Instance]) -> tuple[Instance, Instance] | None:
    """Two static engines of which either could be meant as the half of one pair; None if all are clear.

    A static P has one D that knows it, and nothing in a call says which: a call that is sent to
    halves of two pairs waits for KV that never comes.
    """
    halves: dict[tuple[Role, str, str], Instance] = {}
    for one in fleet:
        if one.protocol != "neuron" or one.generation != STATIC:
            continue
        half = (one.role, one.model, one.pair)
        if half in halves:
            return halves[half], one
        halves[half] = one
    return None


def parse(request_id: str) -> PeerId | None:
    """Return the peer that an id names; None if it names none, or a port that cannot be one."""
    match = _ID.fullmatch(request_id)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    index = match["index"]
    return PeerId(
        match["uid"],
        match["host"].strip("[]"),
        int(match["port"]),
        None if index is None else int(index),
    )
