"""Settings of a connector: what it has to know of the engine that it serves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from pdgate.protocols.instance import Role
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.workers import is_first
from pdgate.transfer.runtime.fleet import Identity

_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """
    Attributes:
        role: "prefill", "decode" or "both".
        host: Where peers reach this engine.
        api_port: Of its HTTP API.
        kv_host: Where the KV side listens.
        kv_port: 0 for any; neuron takes api_port + 1 instead.
        lease_seconds: How long prefill keeps pages for a reader, and how long a reader
            waits for them.
        model: Compared with the peer's.
        mover: Who writes pages into peers: a process of its own, or threads of this one,
            which take turns at the interpreter with the model.
        patience: With peers that say nothing.
        peer: "host:port" of the other engine's API, for ids that name none (neuron, static
            1P1D); empty if there is none. Anything else raises ValueError.
        layer_wise: With neuron, a request may leave layer by layer while it is computed.
        whole_pages: With neuron, decode has prefill send pages whole where the two split the
            heads differently, and puts them in order; it takes the KV's memory once more.
        read_back: With vllm-nixl, decode keeps what it has of a turn, and prefill reads that.
        max_seqs: How many requests the engine serves at once; with neuron, no more than these
            transfer at once.
        engine_id: What peers know this engine by; empty for a new name at each start.
        queue: URL of the prefill queue (decode-first).
        max_local_prefill: With decode-first, decode computes a prompt itself of which it has not
            cached more tokens than these; None leaves that to the gateway.
        max_prefill_queue: With decode-first, decode computes a prompt itself while so many wait on
            the queue; None for never.
        store: Folder that the engines share (store-mediated); empty for one of this user's on this host.
        identity: What we prove to peers.
        borrows: What decode lends of a prompt's beginning is read. What cannot be read has to be computed, so not by an
            engine that would end the request.
        moment: An event behind all that the model has asked of its device so far; None where that has
            happened, as on a CPU. Asked for on the core's thread, so it has to be quick.
        step_end: An event behind the step that is beginning, with which all that the prefix cache names now is in its
            pages; None where it is there already. Asked for as `moment` is.
        ranks: Which of the engine's ranks the regions are, in this order (those of the first
            pipeline stage come first); empty for all of them.
        state_bytes: What the model's state of a token takes, which goes along with the pages (engine/speculation.py);
            None where the engine has none to give, and no use for one.
        speculates: As decode, the engine guesses tokens, from the second on by itself and the first from such a state.
        tell_ranks: Says something to the connectors of the engine's other ranks (`Connector.told`), if there are any;
            they have been told of every request before that this one knows of.
    """

    role: str
    host: str
    api_port: int
    kv_host: str
    kv_port: int
    lease_seconds: float
    model: str
    peer: str = ""
    queue: str = ""
    max_local_prefill: int | None = None
    max_prefill_queue: int | None = None
    store: str = ""
    layer_wise: bool = True
    whole_pages: bool = False
    read_back: bool = False
    max_seqs: int = 64
    engine_id: str = ""
    mover: Literal["process", "threads"] = "process"
    patience: Patience = field(default_factory=Patience)
    identity: Identity = field(default_factory=Identity)
    ranks: tuple[int, ...] = ()
    state_bytes: int | None = None
    speculates: bool = False
    borrows: bool = True
    tell_ranks: Callable[[Any], object] = field(default=lambda _: None, repr=False, compare=False)
    moment: Callable[[], DeviceEvent | None] = field(
        default=lambda: None, repr=False, compare=False
    )
    step_end: Callable[[], DeviceEvent | None] = field(
        default=lambda: None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _ = self.peer_address

    @property
    def peer_address(self) -> tuple[str, int] | None:
        """Host and port of `peer`."""
        if not self.peer:
            return None
        parts = urlsplit(f"//{self.peer}")
        if not parts.hostname or not parts.port:
            raise ValueError(f'peer must be "host:port", not {self.peer!r}')
        return parts.hostname, parts.port

    @property
    def advertised_host(self) -> str:
        return self.host if self.kv_host in _WILDCARDS else self.kv_host

    @property
    def speaks_for_all(self) -> bool:
        """Whether this is the engine's only process with ranks, or the first one."""
        return is_first(self.ranks)

    @property
    def takes_states(self) -> bool:
        """Whether this process is where the engine's decode side hears of a peer's state."""
        return self.state_bytes is not None and self.speculates and self.speaks_for_all

    def may(self, role: Role) -> bool:
        return self.role in (role, Role.BOTH)

    def demand(self, role: Role) -> None:
        """Raises ValueError: crossed roles fail one request here, and kill a vLLM engine."""
        if not self.may(role):
            raise ValueError(f"this engine's role is {self.role}, not {role}")
