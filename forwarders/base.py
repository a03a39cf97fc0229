"""Contract of forwarders: a call turned into legs.

A forwarder turns a call into legs and does no I/O, so it can be read, tested and
written without a network. execution.py sends the legs and gives every forwarder
the same failover, cancellation, metrics and traces.

There are four ways to cross the engines, and a class for each:

    HandOff      prefill answers first; its reply tells decode where the cache is
    Rendezvous   both start together and meet at an address that both were given
    Delegation   only decode is asked; its connector calls the prefill engine named
    Plain        one engine does it all

A forwarder declares one of them for each scheduling mode that it can do (`Family`
where they differ):

    staged   decode is chosen when prefill has answered, from fresh load
    batch    the pair is chosen together
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Protocol, Self

import msgspec

from pdgate.forwarders.choices import Mode
from pdgate.forwarders.kv_lease import NOTHING_KEPT, KvRules
from pdgate.forwarders.prompt import one_token, several_prompts
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Headers, Json, Passed, Raw
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.members import plain_members
from pdgate.scheduling.disaggregation import Decision
from pdgate.scheduling.watch import StreamWatch

__all__ = [
    "Answer",
    "Awaited",
    "Callback",
    "CallbackPort",
    "Delegation",
    "Engines",
    "Family",
    "Forwarder",
    "HandOff",
    "Introduction",
    "Joining",
    "Leg",
    "Merge",
    "Mode",
    "Plain",
    "Rendezvous",
    "Reserved",
    "Sink",
    "Upstream",
    "one_token",
    "several_prompts",
]


@plain_members
class CallbackPort(StrEnum):
    """Ports of the gateway at which engines call back, each opened where a protocol of the fleet wants it."""

    METASERVER = "metaserver"
    """HTTP: a body is POSTed to the path of a `Callback`."""
    NOTIFICATIONS = "notifications"
    """ZeroMQ: a message is pushed to a PULL socket."""


class Callback(msgspec.Struct, frozen=True):
    """How the engines of a protocol call the gateway back in the middle of a call (gateway/callbacks).

    Attributes:
        read: Of a body or a message: the `Awaited.key` that it is for, and what it says. Raises BadRequest, ValueError.
        path: Of the metaserver.
    """

    port: CallbackPort
    read: Callable[[bytes], tuple[str, Json]]
    path: str = ""


class Awaited(msgspec.Struct, frozen=True):
    """What an engine says to the gateway beside its answers, and a leg hangs on (gateway/callbacks).

    Attributes:
        key: By which the engine names the call; known to no stranger.
        by: The id of the engine that says it: its failure, if it does not.
        write: Makes the body of the leg of what was said; None: it is sent as it is, once that was said.
    """

    key: str
    by: str
    write: Callable[[Json], Json] | None = None


class Leg(msgspec.Struct, frozen=True):
    """One HTTP request to one engine.

    Attributes:
        body: Written with protocols.call.encode, so raw values stay as they are.
        headers: Added to those that every leg gets; `request_id` has its own field.
        request_id: Sent as X-Request-Id; empty for the call's attempt id.
        passed: What is sent instead of a POST of the body.
        awaits: What else has to be heard of it.
        addressed: Makes its body of where this gateway's metaserver is, as in http://10.0.0.9:4321.
        hears: Called with what of its answer may have fields that are not for clients.
        read: Reads an answer that is no JSON object; raises BadRequest.
    """

    to: Instance
    path: str
    body: Json
    headers: Mapping[str, str] = {}
    request_id: str = ""
    passed: Passed | None = None
    awaits: Awaited | None = None
    addressed: Callable[[str], Json] | None = None
    read: Callable[[bytes], dict[str, Raw]] | None = None
    hears: Callable[[bytes], None] | None = None


Joining = Generator[Leg, Json, None]
"""Legs, each sent when the one before was answered, and with what; raises EngineFailed, BadRequest."""


class Merge(ABC):
    """Makes one stream of what prefill said first and what decode streams."""

    @abstractmethod
    def first(self, reply: Json) -> bytes:
        """What the client may have as soon as prefill has answered; empty for nothing."""

    @abstractmethod
    def feed(self, chunk: bytes) -> bytes:
        """What to send for these bytes of decode's answer."""

    @abstractmethod
    def end(self) -> bytes:
        """What to send when decode's answer is complete."""


KEEPS_TOGETHER = frozenset({"n", "best_of", "prompt_logprobs", "echo", "use_beam_search"})
"""Fields that may be a reason not to split a call; most calls have none of them."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a prefill engine says of itself over HTTP, and decode must be told; asked with each look at it.

    Attributes:
        path: Of a GET of its API.
        read: Of what it answers: by what decode reaches it, which becomes its engine id. Raises ValueError.
    """

    path: str
    read: Callable[[bytes], str]


class Forwarder(ABC):
    """What all four have in common."""

    name: ClassVar[str]
    modes: ClassVar[Mapping[Mode, str]] = {}
    """Mode -> "" if it can be done, else the reason why not."""
    decode_can_prefill: ClassVar[bool] = True
    """Whether a decode engine may be sent a whole call."""
    prefill_can_answer: ClassVar[bool] = False
    """Whether a prefill engine may be sent a whole call, and then keeps no KV of it."""
    decode_computes: ClassVar[int] = 1
    """Tokens of a prompt that decode computes although it is handed its KV, at most; 0: under a block."""
    own_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of a body that only the gateway may set: calls that bring one are refused."""
    callback: ClassVar[Callback | None] = None
    """How its engines call the gateway back in the middle of a call, if they do."""
    hands_first_token: ClassVar[bool] = False
    """Whether decode goes on behind the token that prefill sampled; else it samples the first one itself."""
    prefill_answers_first: ClassVar[bool] = True
    """Whether prefill's answer comes with its token, and not when decode has the KV."""
    introduction: ClassVar[Introduction | None] = None
    """How prefill engines say where they are, if decode must be told before they have answered."""
    kv: ClassVar[KvRules] = NOTHING_KEPT
    """What becomes of the KV of a split call, if decode does not come for it."""
    one_process: ClassVar[bool] = False
    """Whether engines take words of one gateway process alone, so that a gateway of it has one worker."""
    splits: frozenset[str] = frozenset({CHAT, COMPLETIONS})
    """Paths on which its engines hand KV over; calls of others are served by one engine."""

    def why_local(self, call: Call) -> str | None:
        """Why this call must not be split over two engines; None if it may.

        A list of prompts gets only one set of blocks from prefill and strands the
        others; several choices would each pull blocks that the first pull frees; the
        log-probabilities of a prompt are known only where it was computed.
        """
        if call.path == COMPLETIONS and several_prompts(call):
            return "several prompts"
        if KEEPS_TOGETHER.isdisjoint(call.body):
            return None
        if call.value("n", 1) != 1 or (call.value("best_of") or 1) != 1:
            return "several choices"
        if call.value("prompt_logprobs") is not None:
            return "prompt_logprobs"
        if call.value("echo") and call.value("logprobs") is not None:
            return "logprobs of the prompt"
        if call.value("use_beam_search"):
            return "beam search"
        return None

    def engine_id(self, reply: Json) -> str | None:
        """What decode knows the process by that answered, where that must change with each start."""
        return None

    def local(self, call: Call, at: Instance) -> Leg:
        """The whole call on one engine, normally a decode instance."""
        return Leg(at, call.path, call.body)


class HandOff(Forwarder):
    modes: ClassVar = {Mode.BATCH: "", Mode.STAGED: ""}
    kv: ClassVar[KvRules] = KvRules()
    ids_field: ClassVar[str] = ""
    """Field of decode's body in which its engine takes the token ids of a chat's prompt (token_ids.py);
    empty where it takes none."""

    reads_back: ClassVar[bool] = False
    """Whether prefill can read what decode has kept of a turn before (read_back.py)."""

    @abstractmethod
    def prefill(self, call: Call, at: Instance) -> Leg: ...

    @abstractmethod
    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        """`reply` is what prefill answered. Raises EngineFailed if it is of no use."""

    def join(self, prefill: Instance, decode: Instance) -> Joining | None:
        """What the two have to be told before a call can cross them, once for each pair of their lives."""
        return None

    def release(self, call: Call, prefill: Instance, leg: Leg | None) -> Leg | None:
        """What frees the KV at prefill, if no decode engine comes for it; None if that is not to be said.

        `leg`: that decode has begun to answer; None where it has not, as prefill or decode failed or the client left.
        """
        return None


class Rendezvous(Forwarder):
    kv: ClassVar[KvRules] = KvRules()
    modes: ClassVar = {
        Mode.BATCH: "",
        Mode.STAGED: "both legs start together, so decode cannot wait for prefill's answer",
    }

    @abstractmethod
    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]: ...

    def merge(self, call: Call, to_prefill: Leg, to_decode: Leg) -> Merge | None:
        """Return how the two answers become one; None to relay decode's as it is."""
        return None


class Delegation(Forwarder):
    modes: ClassVar = {
        Mode.BATCH: "",
        Mode.STAGED: "decode itself calls prefill, so there is nothing to choose afterwards",
    }

    @abstractmethod
    def leg(self, call: Call, prefill: Instance, decode: Instance) -> Leg: ...


class Plain(Forwarder):
    name: ClassVar = "plain"
    modes: ClassVar = {Mode.BATCH: "", Mode.STAGED: ""}


@dataclass(frozen=True)
class Family:
    """A protocol whose pattern depends on the mode, or on the instance's generation.

    Attributes:
        members: (mode, generation) -> what builds the forwarder; a generation of ""
            stands for every one that is not listed.
        reasons: Why a (mode, generation) that is not in `members` cannot be done.
        default: The generation of those that name none; empty if they must name one.
        decode_computes: As in Forwarder, of all members.
    """

    name: str
    members: Mapping[tuple[Mode, str], Callable[[], Forwarder]]
    reasons: Mapping[tuple[Mode, str], str] = field(default_factory=dict)
    default: str = ""
    decode_computes: int = 1

    @property
    def generations(self) -> tuple[str, ...]:
        """Those that have a name, in order of declaration."""
        return tuple(dict.fromkeys(name for _, name in self.members if name))


class Reserved(Protocol):
    """An engine that counts as busy until the block, or `end`, is over."""

    instance: Instance

    @property
    def unread_tokens(self) -> int:
        """Tokens of the prompt that the engine has still to compute."""

    @property
    def reading_seconds(self) -> float:
        """Seconds that were expected for what the engine had to read when it was reserved."""

    def presume_read(self) -> None:
        """Count the prompt as read, as that time is over and nothing shows it; nothing is learnt."""

    def presume_end(self) -> None:
        """End where the engine reads and no more, for the same reason; `withdraw` may follow."""

    def drop_unread(self) -> None:
        """Drop what will not be computed, as the call gives way."""

    def has_read(self, seconds: float) -> StreamWatch | None:
        """Note how long reading the prompt took, with what was to be read before.

        Return the watch of the pieces of a stream that begins with this, or None.
        """

    def read(self, seconds: float) -> None:
        """`has_read`, and the end: it was to read the prompt, and no more."""

    def was_read(self) -> None:
        """Note that the prompt has been read, as the answer shows; nothing shows when."""

    def has_loaded(self, seconds: float) -> StreamWatch | None:
        """Note how long taking over prefill's KV took; return the same."""

    def worked(self) -> None:
        """A leg has ended well there."""

    def handed_over(self) -> None:
        """Note a good answer to a leg that names the KV of a prefill engine."""

    def end(self) -> None: ...

    def withdraw(self) -> None:
        """The end, and nothing has been sent there."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Engines(Protocol):
    """Chooses engines."""

    def disaggregates(self, call: Call) -> bool:
        """Whether prefill and decode engines serve the call's model; else plain ones do."""

    def reserve(
        self,
        role: Role,
        call: Call,
        *,
        peer: Instance | None = None,
        avoid: Collection[str] = (),
        alone: bool = False,
        reads: bool | None = None,
        among: Collection[str] = (),
        with_room: bool = False,
    ) -> Reserved:
        """An instance of the role that is not in `avoid` and speaks the peer's protocol.

        Only that of `call.at`, if there is one.

        `reads`: whether it computes the prompt; None for what the role says.
        `alone`: whether it will do even if there is none that it can be paired with.
        `among`: one of these, if any of them is left and has room for the call; empty for no matter which.
        `with_room`: none will do in which the call has no room, where it has some in one of those in `avoid`.
        Raises NoInstance, UnknownModel, BadRequest.
        """

    def works(self, instance: Instance, *, lately: bool = False) -> bool:
        """Whether an engine answers probes, and is not known to stand still.

        `lately`: and legs have ended well there in the last seconds.
        """

    def has(self, role: Role, call: Call) -> bool:
        """Whether an instance of the role has the call's model, in whatever state it is."""

    def decide(self, call: Call, prefill: Reserved, *, prefill_can_answer: bool) -> Decision:
        """Whether a call, for which this engine is reserved, is worth splitting now."""

    def report(self, instance: Instance, error: GatewayError) -> None:
        """How a leg to the instance failed; a cancelled one is not reported."""

    def excuse(self, instances: Collection[str]) -> None:
        """The latest failures of these, by their ids, were the call's fault after all."""


class Sink(Protocol):
    """Takes the body of an answer, by callback: no task or future per piece."""

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        """`framed` is the same as a chunk of HTTP/1.1, if it came so: it can leave as it is."""

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        """Called once, last: the body is whole, or EngineFailed, EngineTooSlow.

        The last piece comes with the end if both were there at once, so that they can
        leave in one write.
        """


class Answer(Protocol):
    """An engine's answer whose head has arrived; its body passes through by callback."""

    status: int
    headers: Headers

    async def ready(self, beyond: int = 0) -> bytes:
        """Waits until more than `beyond` bytes of the body are here, or all of it.

        Returns what is here, without taking it. Raises EngineFailed if the engine breaks
        off, EngineTooSlow if it falls silent.
        """

    def start(self, sink: Sink) -> None:
        """Gives the whole body to the sink, piece by piece as it arrives, from now on."""

    def pause(self) -> None:
        """The client is slow: read no more from the engine for now."""

    def resume(self) -> None: ...


class Upstream(Protocol):
    """Sends legs. Raises EngineRefused, EngineFailed, EngineBusy, EngineTooSlow, EngineRejected."""

    def ask(self, leg: Leg, call: Call) -> Awaitable[Json]:
        """The whole JSON answer of a leg, its values still raw."""

    def open(
        self,
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> AbstractAsyncContextManager[Answer]:
        """An answer with a good status. Leaving the block before its end closes the connection.

        `loads`: prefill has read the prompt, so that it has only to take the KV over.
        `within`: seconds in which the first byte must be here, if that is less than it may take.
        `behind`: the id of the prefill engine without which the answer does not begin; empty for none.
        """
