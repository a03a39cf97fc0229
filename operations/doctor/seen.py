"""Observations of engines, and what became of the probes: plain data, which the rules read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdgate.protocols.instance import Instance, Role


@dataclass(frozen=True, slots=True)
class Card:
    """A model as /v1/models has it.

    Attributes:
        root: Where its weights are, as the engine was given it.
    """

    root: str = ""
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class SeenConnector:
    """What moves KV, as an engine that shows its configuration says; empty for what it does not."""

    name: str = ""
    role: Role | None = None
    engine_id: str = ""
    lease_seconds: float | None = None
    embeddings: str = ""
    """Its role towards encoders, as vLLM spells it: ec_producer, ec_consumer, ec_both."""


@dataclass(frozen=True, slots=True)
class SeenBootstrap:
    """What answered at the address of a Mooncake bootstrap server.

    Attributes:
        trouble: Why there is no answer; empty if there is one.
        workers: host:port of where KV is fetched.
    """

    trouble: str = ""
    engine_ids: tuple[str, ...] = ()
    workers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SeenEvents:
    """Publisher of KV events, with an address that others can dial.

    Attributes:
        source: All that the engine says of it.
    """

    endpoint: str
    replay_endpoint: str
    topic: str = ""
    source: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEngine:
    """One engine, looked at. None or empty is what it does not say.

    Attributes:
        trouble: Why it could not be looked at.
        health, models_status: HTTP statuses of /health and /v1/models.
        kind: vllm, sglang, pdgate; by the owner of its models.
        block_tokens: In a KV block.
        tp: Its tensor-parallel size, of protocols whose two sides must have the same.
        ranks: How many data-parallel ones its metrics show.
        counters: Of its metrics, those in parsing.COUNTERS.
        started: Something that is another for each start of the process.
        skew_seconds: Its clock before ours.
        closes: It closes the connection after an answer.
        text_tokens, chat_tokens: What it makes of the texts that all engines get.
        has_nixl: Its metrics have counters of NixlConnector; None without metrics.
        shows_all: It answers any client with all of its configuration.
    """

    instance: Instance
    trouble: str = ""
    health: int = 200
    models_status: int = 200
    cards: Mapping[str, Card] = field(default_factory=dict)
    kind: str = ""
    version: str = ""
    block_tokens: int | None = None
    tp: int | None = None
    ranks: int = 1
    prefix_caching: bool | None = None
    kv_dtype: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)
    started: float | None = None
    skew_seconds: float | None = None
    closes: bool = False
    text_tokens: tuple[int, ...] | None = None
    chat_tokens: tuple[int, ...] | None = None
    connector: SeenConnector = SeenConnector()
    bootstrap: SeenBootstrap | None = None
    events: SeenEvents | None = None
    has_nixl: bool | None = None
    shows_all: bool = False

    @property
    def id(self) -> str:
        return self.instance.id

    @property
    def well(self) -> bool:
        return not self.trouble and self.health == 200 and self.models_status == 200

    @property
    def models(self) -> frozenset[str]:
        return frozenset(self.cards)


@dataclass(frozen=True, slots=True)
class SeenKept:
    """What an engine answered that was asked to keep the KV of a prompt.

    Attributes:
        params: How it says where the KV is; None if it does not.
        trouble: What it answered instead of a 200.
    """

    params: Mapping[str, Any] | None = None
    trouble: str = ""

    def text(self, name: str) -> str:
        found = (self.params or {}).get(name)
        return found if isinstance(found, str) else ""

    @property
    def address(self) -> tuple[str, int] | None:
        """Address at which decode is to fetch it."""
        port = (self.params or {}).get("remote_port")
        host = self.text("remote_host")
        return (host, port) if host and isinstance(port, int) else None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A call of one token through a prefill and a decode engine.

    Attributes:
        trouble: Why decode did not answer well.
        prompt_tokens: As decode counts them.
        taken_tokens: Of those, what its counters say came from prefill; None if they do not tell.
    """

    prefill: str
    decode: str
    trouble: str = ""
    prompt_tokens: int = 0
    taken_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Dial:
    """A connection to where an engine's KV is fetched; opened, and closed again."""

    instance: str
    host: str
    port: int
    trouble: str = ""


@dataclass(slots=True)
class Probes:
    """
    Attributes:
        made: False where the operator wanted none.
        kept: Prefill engine -> its answer.
        turned: Decode engine -> its answer to the same, asked where prefill engines kept nothing.
        silent: Engine -> why it did not answer a plain call of one token.
        hashes: Engine -> what it calls the first blocks of a text that all were given.
        not_checked: What could not be found out -> why not.
    """

    made: bool = True
    kept: dict[str, SeenKept] = field(default_factory=dict)
    turned: dict[str, SeenKept] = field(default_factory=dict)
    crossings: list[Crossing] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    dials: list[Dial] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gatewise:
    """An instance as a gateway sees it."""

    instance: str
    state: str
    cause: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that the rules may read.

    Attributes:
        lease_seconds: How long the gateway believes prefill to keep KV; None for what the protocol says.
        before: Engine's URL -> its engine id and `started` in the last run.
        starts: Command line of an engine -> what stands against its start.
    """

    fleet: Sequence[SeenEngine]
    probes: Probes
    lease_seconds: float | None = None
    before: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    gatewise: Sequence[Gatewise] = ()
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def well(self) -> list[SeenEngine]:
        return [seen for seen in self.fleet if seen.well]

    def of(self, role: Role) -> list[SeenEngine]:
        return [seen for seen in self.well if seen.instance.role.serves(role)]

    def pairs(self) -> Iterable[tuple[SeenEngine, SeenEngine]]:
        """Prefill and decode engines that speak the same, and serve a model together."""
        for prefill in self.of(Role.PREFILL):
            for decode in self.of(Role.DECODE):
                if prefill.id == decode.id or prefill.instance.speaks != decode.instance.speaks:
                    continue
                if prefill.models & decode.models:
                    yield prefill, decode

    def engine_id(self, seen: SeenEngine) -> str:
        """What decode engines know a prefill engine by; empty if nothing says it."""
        kept = self.probes.kept.get(seen.id)
        told = "" if kept is None else kept.text("remote_engine_id")
        boot = "" if seen.bootstrap is None else "".join(seen.bootstrap.engine_ids[:1])
        return told or boot or seen.connector.engine_id
