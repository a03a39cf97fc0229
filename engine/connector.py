"""The seam between the engine core and the protocols that move its KV cache.

The core knows pages and steps; a connector knows peers. Per request:

    decode side                              prefill side
    plan(request) -> Load(tokens=n)          plan(request) -> Keep() or Serve()
    core allocates pages for n tokens        core computes the prompt
    start(load, pages)   ... any thread      kept(request, pages, ...) -> kv_transfer_params
                                             layer_computed(...)  after each layer
    core.loaded(request_id, ...)             core.release(request_id)
    core goes on at token n                  pages are free

All hooks run on the core's thread and must not block: a transfer runs elsewhere and
reports through the thread-safe methods of `Core`.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.layout import Layout
from pdgate.protocols.instance import Role
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger import core as messenger
from pdgate.transfer.messenger import counters


class EngineLost(Exception):
    """What a hook raises where the engine itself cannot go on, and not only the request it was about."""


@dataclass(frozen=True, slots=True)
class Pages:
    """KV pages of one request.

    Attributes:
        block_ids: In prompt order; block i holds tokens [i * block_tokens, ...).
        tokens: How many leading tokens of the sequence they hold, or shall hold.
        cached_tokens: How many of them the prefix cache gave, so they were not computed.
        state: What the model made of the last of these tokens (engine/speculation.py), of pages to keep; empty for none.
    """

    block_ids: Sequence[int]
    tokens: int
    cached_tokens: int = 0
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a connector may know of a request when it arrives.

    Attributes:
        id: The engine's own id, unique while the request lives.
        wire_id: X-Request-Id as it came.
        params: The body's kv_transfer_params (client JSON: validate every field).
        body: The whole body, for protocols that put fields at its top level.
        index: Of this one among all prompts and choices of the HTTP request.
        cached_tokens: Counts those of the prompt that the prefix cache has now, when it is asked.
        drawn: A random number below 2 ** 63, the same one for all ranks of the engine.
    """

    id: str
    wire_id: str
    prompt: Sequence[int]
    params: Mapping[str, Any] | None
    body: Mapping[str, Any]
    index: int = 0
    cached_tokens: Callable[[], int] = lambda: 0
    drawn: int = field(default_factory=partial(secrets.randbits, 63))


@dataclass(frozen=True, slots=True)
class Compute:
    """A prompt that a peer was to compute, and that this engine rather computes itself."""


@dataclass(frozen=True, slots=True)
class Load:
    """The first `tokens` tokens' KV comes from a peer; ticket is the connector's own.

    At least one token. The core computes the last prompt token in any case, as it needs its
    logits; unless it is loaded too, and the token after it comes by `Core.sampled`.

    Attributes:
        keep: What becomes of the pages when the request finishes; None where they are free then.
        optional: What does not come is computed.
    """

    tokens: int
    ticket: Any
    keep: "Keep | None" = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Hold the pages when the request finishes, until `release` or the lease's end.

    Attributes:
        max_tokens: To sample before it finishes, if it is fewer than the request says.
    """

    lease_seconds: float
    ticket: Any = None
    max_tokens: int | None = None


Plan = Load | Keep | Compute | None
"""What a connector has a request do; None for what every engine does with it."""

Counters = counters.MessengerCounters


class Core(messenger.MessengerCore, Protocol):
    """What a connector may ask of the core; every method is thread-safe."""

    def submit_prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        """Computes the first `tokens` prompt tokens without sampling, then calls `kept`.

        What `load` can bring, fewer tokens than these, is not computed, unless it fails.
        """

    def sampled(self, request_id: str, token: int) -> None:
        """Prefill sampled this first token of the answer. Comes before `loaded`.

        A core that computes the last prompt token in any case ignores it.
        """
        return

    def came_along(self, request_id: str, state: bytes) -> None:
        """Prefill gave this along with the pages, `Pages.state` of its own. Comes before `loaded`.

        A core that guesses no tokens ignores it.
        """
        return


class Connector(ABC):
    """One protocol, as prefill and as decode side.

    Attributes:
        load_failure: How a request ends whose load failed: "error" is a 500,
            "abort" is a 200 with finish_reason "abort".
        takes_ranks: Ranks of an engine of it may be processes, with a connector each (`ranks` of its
            settings), which are introduced to each other.
        takes_data_ranks: Peers find it by what prefill answered alone, so that a process may have several.
        takes_devices: Its regions may be a device's memory.
        fixed_role: An engine of it is prefill or decode from its start to its end.
        kv_port_offset: Where the KV side listens, counted from the HTTP API's port; 0 if it
            listens on a port of its own choice.
        kv_address: Host and port that the KV side listens on, as bound.
        counters: What /metrics shows of hand-overs.
    """

    load_failure: ClassVar[str] = "error"
    takes_ranks: ClassVar[bool] = False
    takes_data_ranks: ClassVar[bool] = False
    takes_devices: ClassVar[bool] = False
    fixed_role: ClassVar[bool] = False
    kv_port_offset: ClassVar[int] = 0
    kv_address: tuple[str, int]
    counters: Counters

    @abstractmethod
    def __init__(
        self,
        *,
        core: Core,
        layout: Layout,
        regions: Sequence[Region],
        backend: Backend,
        settings: ConnectorSettings,
    ) -> None:
        """Begin to listen for peers. Raise OSError if the port is taken, ValueError for bad settings.

        `regions` are the engine's KV memory, one for each tensor-parallel shard, laid out as
        `layout` says; `backend` moves bytes between them and a peer's.
        """

    @classmethod
    def check(cls, settings: ConnectorSettings) -> None:
        """Raise ValueError for settings that cannot work, before anything is opened."""
        return

    @abstractmethod
    def plan(self, arrival: Arrival) -> Plan:
        """What this request needs. Raises ValueError for bad params (the client gets a 400)."""

    @abstractmethod
    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        """Begin to fill the pages. The first `skip_tokens` are already there (prefix cache).

        Also called when nothing is left to load, so that the peer can be told to free its
        pages; `loaded` is due all the same.
        """

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """The request was aborted while loading; `loaded` is still to be called once."""

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        """The KV of the first `tokens` tokens is in this layer's pages of a planned Keep.

        Comes in the middle of a step, for each layer and chunk, so it has to be quick. The
        pages stay where they are until the request is kept or dropped.
        """
        return

    @abstractmethod
    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        """The pages are ready. What to answer as kv_transfer_params, if anything.

        `first_token` is the token that prefill sampled, if it did. `finish_reason` is the
        request's ("length", "stop"), and "length" for a `submit_prefill`: some protocols
        keep nothing of a request that stopped by itself.
        """

    @abstractmethod
    def dropped(self, request_id: str, why: str) -> bool | None:
        """The pages of a kept request shall go (lease over, aborted): refuse its readers.

        True if a reader is in the middle of them: they stay until the connector calls
        `release`. Also called when a request that was planned as Keep ends before `kept`, and
        when `kept` raises. Comes before the pages are used again; not after a `release`.
        """

    def break_off(self, request_id: str) -> None:
        """These pages, of which `dropped` has said that a reader is in the middle, are needed now: the engine waits.

        Give up what is moving there, where that can be: `release` comes the sooner.
        """
        return

    def written(
        self, answer: dict[str, Any], params: Mapping[str, Any] | None, prompt: Sequence[int]
    ) -> dict[str, Any]:
        """Prefill's answer of chat or completions, with what `kept` returned at its place.

        By the arguments alone: where ranks are processes there is no connector beside the HTTP API.
        On the thread of HTTP, and without waiting. `prompt`: the ids of the only, or the first one.
        """
        return answer | {"kv_transfer_params": params}

    def server_info(self) -> Mapping[str, Any]:
        """What GET /server_info says of us; nothing where there is no such route."""
        return {}

    def routes(self) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
        """Paths that only this protocol has, and what answers a GET, or the object that was POSTed there.

        On the thread of HTTP, and without waiting; each raises ValueError for what means nothing.
        """
        return {}

    def told(self, word: Any) -> None:
        """Hear what another rank of this engine has said by `ConnectorSettings.tell_ranks`."""
        raise NotImplementedError(f"no rank of {type(self).__name__} says anything to others")

    def role_is(self, role: Role) -> None:
        """Hear the role that gateways see, now and after each change. Calls are served as before."""
        return

    def trouble(self) -> str:
        """Why calls would fail here until a restart; empty if all is well. No waiting."""
        return ""

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        """What only this protocol has to show on /metrics: name -> meaning, number. No waiting."""
        return {}

    def leave(self) -> None:
        """This engine is about to end: begin nothing new of your own. What runs goes on."""
        return

    @abstractmethod
    def close(self) -> None: ...
