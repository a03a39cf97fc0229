"""Orders of the scheduler's side to the worker's, with the next step.

    P    Hold --.-> Kept    its pages are ready for a reader
         Borrow |             fill these blocks with what D lends; one report is due
         Progress  |-> Drop    it ended without
         Evict     '-> Forgo   ... before a step computed any of it
                            Evict: preempted, its blocks are others' from this step on
    D    Fetch --> (Cancel)   fill these blocks; one report is due
         LetGo                nothing to fetch: tell P
         Refuse               it waits for a load that could not even be ordered

They travel pickled over vLLM's own shared memory queue, between processes of one engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request as it came.

    Attributes:
        id: vLLM's internal id, unique in this engine.
        wire_id: By which P and D meet; made of the X-Request-Id.
        params: Its kv_transfer_params; nothing in them has been checked.
    """

    id: str
    wire_id: str
    prompt: tuple[int, ...]
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hold:
    asked: AskedRequest


@dataclass(frozen=True, slots=True)
class KeptBlocks:
    """The blocks hold the first `tokens` tokens, and stay until the worker reports them sent."""

    id: str
    block_ids: tuple[int, ...]
    tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Its blocks too stay until the worker reports them sent: a peer may be in them."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a Hold: after this step `block_ids` hold its first `tokens` tokens."""

    id: str
    block_ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Evict:
    id: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fill `block_ids` with the first `tokens` tokens; `skip_tokens` of them are there.

    The first blocks may be shared with other requests: nothing is written to those that
    `skip_tokens` covers.
    """

    asked: AskedRequest
    block_ids: tuple[int, ...]
    tokens: int
    skip_tokens: int


@dataclass(frozen=True, slots=True)
class Borrow(Fetch):
    """Fill them with what the decode engine lends that asked us for this prefill. Its Hold comes before."""


@dataclass(frozen=True, slots=True)
class Forgo:
    """A Hold that ended before a step computed any of it: no peer is in its blocks, and vLLM has them back by itself."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class LetGo:
    asked: AskedRequest


@dataclass(frozen=True, slots=True)
class CancelOrder:
    id: str


@dataclass(frozen=True, slots=True)
class RefuseOrder:
    id: str
    why: str


Order = (
    Hold | Progress | Evict | KeptBlocks | Drop | Forgo | Fetch | LetGo | CancelOrder | RefuseOrder
)
