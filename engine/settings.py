"""Every knob of an engine process."""

import re
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal, get_args

from pdgate.cluster import address
from pdgate.engine.cache.tier_spec import peers_of, specs_of
from pdgate.engine.model.config import is_built_in
from pdgate.protocols.place import NOWHERE, Place
from pdgate.transfer.runtime.tls import NO_TLS, Tls

EngineRole = Literal["prefill", "decode", "both", "plain", "encode"]
OnFailedLoad = Literal["fail", "recompute"]

HIGHEST_PORT = 65535
SPANS = ("lease_seconds", "goodbye_seconds", "min_prefill_ms", "min_token_ms", "min_read_ms")
NO_PROTOCOL = "plain"
MOST_GUESSES = 16
DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """
    Attributes:
        model: Folder of a Hugging Face Llama model, or the name of a built-in one; None for the first of these.
        served_names: What clients may call it; the first is what answers say. Empty for
            the folder's path or the built-in one's name; "*" lets every name pass.
        host: Listened on, and advertised to peers.
        port: 0 takes a free one.
        protocol: Which connector hands KV over; "plain" for none.
        kv_secret_file: Holds the secrets of the fleet, one a line; empty for what the environment
            says (PDGATE_KV_SECRET_FILE, PDGATE_KV_SECRET), if anything.
        kv_tls: Files that encrypt what engines say to each other, beside the secret; unnamed for
            what the environment says, if anything.
        peer: "host:port" of the other engine's API, where request ids name none (neuron).
        pair: Name of the pair that it is announced as a half of; empty for none.
        queue: URL of the prefill queue (decode-first), with its options.
        max_local_prefill: With decode-first, decode computes a prompt itself of which it has not
            cached more tokens than these; None leaves that to the gateway.
        max_prefill_queue: With decode-first, decode computes a prompt itself while so many wait on
            the queue; None for never.
        kv_tiers: Where full blocks are kept beyond the pages: "host=FOLDER:MIB", "disk=FOLDER:MIB"; "peer=HOST:PORT:MIB"
            asks an engine of another host for what it has there.
        kv_tier_port: Where engines of other hosts may ask for blocks of our tiers, on `kv_host`; 0 takes a free one,
            None serves none.
        kv_tier_transfer: Which backend moves blocks of tiers between hosts.
        store: Folder that the engines share (store-mediated); empty for one of this user's on this host.
        neuron_layer_wise: With neuron, a request leaves layer by layer while it is computed;
            else when its first token has been sampled.
        read_back: With vllm-nixl, decode keeps what it has of a turn for the prefill of the next.
        neuron_whole_pages: With neuron, decode has prefill send pages whole where the two split
            the heads differently, and puts them in order; it takes the KV's memory once more.
        transfer: Which backend moves the KV.
        transfer_options: "name=value" for that backend's constructor.
        tp: Shards of the KV cache, with a memory each, as tensor parallelism splits it. Processes of
            their own where the protocol takes ranks (engine/ranks/).
        pp: Pipeline stages, which have some of the layers each, as processes.
        dp: Data-parallel ranks: engines behind one port, with a core and a cache each.
        block_tokens, blocks: Size of a KV block, and how many there are.
        max_seqs, max_step_tokens: Limits of one step.
        speculate: How many tokens are guessed and verified beside each that is due; 0 for none.
        max_model_tokens: Longest prompt and answer together; None for what model and
            blocks allow.
        default_max_tokens: Of a chat that names no limit; None for all the room there is.
        head_first: The head of a stream is sent before its first token is there, as vLLM does.
        lease_seconds: How long a finished prefill waits for its reader.
        hash_seed: Part of the names of cached blocks; engines that compare them need the same.
        engine_id: What peers know it by; empty for a new name at each start. Where it stays the
            same, peers take a restarted engine for the one before.
        min_prefill_ms, min_token_ms: Least duration of a step that finishes prompts, or
            decodes: for tests that need a slower engine.
        min_read_ms: Least duration of a step for each prompt token that it reads.
        fail_rate: Share of requests refused with a 500.
        die_after: Requests to take in before the process dies at the next one.
        directory: Name of the kind of directory to be listed in; empty for none, or etcd.
        directory_options: "name=value" for that kind.
        etcd: URLs of the etcd to be listed in, between commas; empty for none.
        etcd_user_file: Holds name:password, where etcd asks for one.
        etcd_ca_file: Certificates (PEM) that vouch for etcd, where the usual ones do not.
        admin_token_file: Holds the token that opens /admin/role; empty for no such route.
        control: Any client of the port may pause it, and change its weights.
        advertise_host: What others dial, where `host` is a wildcard or a name of ours only.
        place: Of this engine, for policies that prefer near pairs; the host may be left empty.
        kv_events_port: Where it publishes what becomes of its cached blocks, on `kv_host`; 0 takes
            a free one, None publishes nothing.
        kv_events_replay_port: Where it repeats what was missed.
        goodbye_seconds: What answers under way get when the process is asked to end.
        threads: Of the linear algebra library.
        device: Where PyTorch computes, "cpu" or "cuda:N"; empty for NumPy.
    """

    model: str | None = None
    served_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    role: EngineRole = "plain"
    protocol: str = NO_PROTOCOL
    kv_host: str = "127.0.0.1"
    kv_port: int = 0
    kv_secret_file: str = ""
    kv_tls: Tls = NO_TLS
    peer: str = ""
    pair: str = ""
    queue: str = ""
    max_local_prefill: int | None = None
    max_prefill_queue: int | None = None
    store: str = ""
    kv_tiers: tuple[str, ...] = ()
    kv_tier_port: int | None = None
    kv_tier_transfer: str = "tcp"
    neuron_layer_wise: bool = True
    neuron_whole_pages: bool = False
    read_back: bool = False
    transfer: str = "tcp"
    transfer_options: tuple[str, ...] = ()
    tp: int = 1
    pp: int = 1
    dp: int = 1
    block_tokens: int = 16
    blocks: int = 512
    max_seqs: int = 64
    max_step_tokens: int = 512
    speculate: int = 0
    max_model_tokens: int | None = None
    default_max_tokens: int | None = 128
    head_first: bool = False
    lease_seconds: float = 30.0
    on_failed_load: OnFailedLoad = "fail"
    reuse_prefixes: bool = True
    hash_seed: str = ""
    engine_id: str = ""
    min_prefill_ms: float = 0.0
    min_token_ms: float = 0.0
    min_read_ms: float = 0.0
    fail_rate: float = 0.0
    die_after: int | None = None
    directory: str = ""
    directory_options: tuple[str, ...] = ()
    etcd: str = ""
    etcd_user_file: str = ""
    etcd_ca_file: str = ""
    admin_token_file: str = ""
    control: bool = False
    advertise_host: str = ""
    place: Place = NOWHERE
    kv_events_port: int | None = None
    kv_events_replay_port: int = 0
    goodbye_seconds: float = 5.0
    log_level: str = "info"
    threads: int = 1
    device: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot work."""
        sizes = (self.block_tokens, self.blocks, self.max_seqs, self.max_step_tokens)
        if min(self.tp, self.pp, self.dp, *sizes) < 1:
            raise ValueError(
                "tp, pp, dp, block tokens, blocks, sequences and step tokens must be positive"
            )
        for name in SPANS:
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name.replace('_', ' ')} must be a number of at least 0")
        ports = (self.port, self.kv_port, self.kv_events_port, self.kv_events_replay_port)
        for port in (*ports, self.kv_tier_port):
            if port is not None and not 0 <= port <= HIGHEST_PORT:
                raise ValueError(f"{port} is no port; they go from 0 to {HIGHEST_PORT}")
        if not (is_built_in(self.model) or (Path(self.model or "") / "config.json").is_file()):
            raise ValueError(f"{self.model} is no model: it has no config.json")
        if self.max_seqs > self.max_step_tokens:
            raise ValueError("a step must have a token for each running sequence")
        if not 0 <= self.speculate <= MOST_GUESSES:
            raise ValueError(
                f"an engine guesses 0 to {MOST_GUESSES} tokens: speculate {self.speculate}"
            )
        if self.role not in get_args(EngineRole):
            raise ValueError(f"unknown role {self.role!r}: {', '.join(get_args(EngineRole))}")
        if self.on_failed_load not in get_args(OnFailedLoad):
            raise ValueError(f"unknown policy for failed loads {self.on_failed_load!r}")
        if not 0 <= self.fail_rate <= 1:
            raise ValueError("the fail rate is a share, 0..1")
        if (self.role in ("plain", "encode")) != (self.protocol == NO_PROTOCOL):
            raise ValueError(
                f"role {self.role} and protocol {self.protocol} do not go together: "
                "an engine that hands over has a role of prefill, decode or both"
            )
        if self.transfer_options and self.protocol == NO_PROTOCOL:
            raise ValueError("a plain engine transfers nothing, so it takes no transfer options")
        if self.read_back and (self.protocol != "vllm-nixl" or self.tp * self.pp > 1):
            raise ValueError("reading back is for engines of vllm-nixl that have one rank")
        for name in ("max_local_prefill", "max_prefill_queue"):
            given = getattr(self, name)
            if given is not None and self.protocol != "decode-first":
                raise ValueError(f"{name.replace('_', ' ')} is for engines of decode-first")
            if given is not None and given < 0:
                raise ValueError(f"{name.replace('_', ' ')} must be at least 0")
        if (specs_of(self.kv_tiers) or peers_of(self.kv_tiers)) and not self.reuse_prefixes:
            raise ValueError("KV tiers keep prefixes: they need the prefix cache")
        if self.kv_tier_port is not None and not specs_of(self.kv_tiers):
            raise ValueError("there is no KV tier of this host to serve (kv tier port)")
        if self.device and not DEVICE.fullmatch(self.device):
            raise ValueError(f"unknown device {self.device!r}: cpu, cuda or cuda:N")
        if self.kv_tiers and self.device.startswith("cuda"):
            raise ValueError("KV tiers copy pages that the host can touch, which a GPU's are not")
        if self.advertise_host:
            address.host(self.advertise_host)
        if self.etcd:
            address.endpoints(self.etcd)
            if self.listed_in != "etcd":
                raise ValueError(f"there is one directory, not etcd and {self.directory!r}")
        if self.directory_options and not self.listed_in:
            raise ValueError("directory options are of no use without a directory")
        if self.listed_in and self.host in WILDCARDS and not self.advertise_host:
            raise ValueError(
                f"nobody can dial {self.host!r}: name the address to announce (advertise host)"
            )

    def of_rank(self, rank: int) -> "EngineSettings":
        """Settings of one data-parallel rank: each next one listens for peers at the next port, as vLLM's do."""
        events, replay = self.kv_events_port, self.kv_events_replay_port
        tiers = self.kv_tier_port
        return replace(
            self,
            kv_port=self.kv_port and self.kv_port + rank,
            engine_id=f"{self.engine_id}_dp{rank}" if self.engine_id else "",
            kv_tier_port=tiers and tiers + rank,
            kv_events_port=events and events + rank,
            kv_events_replay_port=replay and replay + rank,
        )

    @property
    def shares_tiers(self) -> bool:
        """Whether it asks engines of other hosts for blocks, or is asked."""
        return self.kv_tier_port is not None or bool(peers_of(self.kv_tiers))

    @property
    def listed_in(self) -> str:
        """The kind of directory; empty for none."""
        return self.directory or ("etcd" if self.etcd else "")

    @property
    def most_tokens(self) -> int:
        """Tokens of one sequence: what was asked for, and no more than all blocks hold."""
        room = self.blocks * self.block_tokens
        return min(room, self.max_model_tokens or room)
