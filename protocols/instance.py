"""Instance: the record that an engine announces to the cluster, as JSON in every store."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from pdgate.protocols.members import plain_members
from pdgate.protocols.place import NOWHERE, Place

GENERATIONS_APART: Final = frozenset({"neuron", "mori-io"})
"""Protocols of which engines of different generations do not understand each other."""


@plain_members
class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"
    PLAIN = "plain"
    ENCODE = "encode"

    @property
    def hands_over(self) -> bool:
        """Whether an engine of it is one of a pair, which speaks a protocol."""
        return self not in (Role.PLAIN, Role.ENCODE)

    def serves(self, asked: "Role") -> bool:
        return self is asked or (self is Role.BOTH and asked in (Role.PREFILL, Role.DECODE))


# For what is done with every call (members.py).
PREFILL: Final = Role.PREFILL
DECODE: Final = Role.DECODE
BOTH: Final = Role.BOTH
PLAIN: Final = Role.PLAIN
ENCODE: Final = Role.ENCODE


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine process that answers HTTP.

    Attributes:
        id: Unique in the fleet and shown to operators only, never to clients.
        url: Base URL without a trailing slash.
        protocol: Which forwarder speaks to it.
        generation: Which spelling of that protocol, where there are several ("a".."d").
        model: The model it was configured with; empty if it is to be asked.
        kv: "host:port" of its KV side (KVT rpc, bootstrap server); empty if unused.
        engine_ids: Data-parallel rank -> engine id, as its bootstrap server gave it.
        kv_notify: Port of the same host at which peers say what is done (MoRI-IO); 0 for its default.
        tp: Ranks that its KV is split over; 0 if it is not known.
        dp_rank: The rank to pin calls to; None leaves the choice to the engine.
        dp_size: Number of data-parallel ranks behind the URL.
        pair: Name of the pair that it is one half of: it meets the other half and no other engine.
            Empty where it meets all.
        place: Its host, rack and zone; the host is that of the URL unless set otherwise.
    """

    id: str
    url: str
    role: Role
    protocol: str
    generation: str = ""
    model: str = ""
    kv: str = ""
    engine_ids: tuple[tuple[int, str], ...] = field(default=())
    dp_rank: int | None = None
    dp_size: int = 1
    pair: str = ""
    place: Place = NOWHERE
    kv_notify: int = 0
    tp: int = 0

    @property
    def speaks(self) -> str:
        """What two engines must have in common to be a pair."""
        own = [self.generation] if self.protocol in GENERATIONS_APART else []
        if self.pair:
            own.append(f"pair {self.pair}")
        return f"{self.protocol} ({', '.join(own)})" if own else self.protocol

    @property
    def host(self) -> str:
        """Host without the brackets of an IPv6 address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def kv_address(self, default_port: int) -> tuple[str, int]:
        """Host and port of the KV side; the host of the URL unless `kv` says otherwise."""
        if not self.kv:
            return self.host, default_port
        parts = urlsplit(f"//{self.kv}")
        return parts.hostname or self.host, parts.port or default_port
