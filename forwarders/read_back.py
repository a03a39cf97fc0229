"""Read back: the KV that a decode engine has of a conversation's last turn, for the prefill engine of its next one (vllm-nixl).

    turn 1    prefill answers the ids of its prompt; decode says, behind its answer, where its own blocks are
    turn 2    begins with the messages of turn 1, at a prefill engine that has not read them:
              /tokenize   its ids begin with those of turn 1    ->   decode's blocks go along, cut to them; prefill reads them
                          they do not: a template that rewrites the past, say    ->   nothing goes along

An engine takes such blocks for those of its prompt without a look at tokens, and would answer wrong, and cache it, where they are
of others; so ids are compared before, and of decode's blocks only the whole ones of turn 1's prompt are named: what ids its
answer had the gateway does not know. What is remembered of a turn is used once, by its owner (API key, cache_salt, model), for KEPT_SECONDS, which
is less than decode keeps the blocks, and forgotten with decode's process. The next turn may reach another worker process, so where there are several
they have turns in common; one worker forgets for itself, so it uses no turn that others kept before it last did, or before it began.

Source: vLLM 0.32.0, nixl/pull_scheduler.py (get_num_new_matched_tokens, request_finished), base_worker.py (blocks are trimmed from
the end, so a shorter count of tokens needs a shorter list), examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py.
"""

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, Protocol

import msgspec

from pdgate.forwarders.base import Leg, Upstream
from pdgate.forwarders.token_ids import ASK, FIELD, is_text_alone
from pdgate.protocols import sse, tokenize
from pdgate.protocols.call import CHAT, Call, Json, Raw, encode, parse_object
from pdgate.protocols.dialects import nixl
from pdgate.protocols.errors import BadRequest, GatewayError
from pdgate.protocols.fields import UNREADABLE
from pdgate.protocols.instance import Instance

KEPT_SECONDS: Final = 450.0
"""Decode keeps blocks for 480 s (decoder_kv_blocks_ttl)."""
ASK_SECONDS: Final = 5.0
"""For the ids of a prompt; without them it is computed."""
MOST_TURNS: Final = 4096
MOST_HELD_BYTES: Final = 32 << 20
"""Of what decode engines said of all turns."""
MOST_SAID_BYTES: Final = 256 << 10
"""Of one turn; blocks of a prompt of a million tokens have more."""
MOST_MESSAGES: Final = 512
MOST_CHAT_BYTES: Final = 1 << 20
MOST_IDS_BYTES: Final = 1 << 20

_messages: Final = msgspec.json.Decoder(list[Raw]).decode
_ids: Final = msgspec.json.Decoder(list[int]).decode
_NAME: Final = b'"kv_transfer_params"'


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """
    Attributes:
        prefill: The id of the engine that read its prompt, and has it itself.
        decode: Of the engine that has the blocks.
        seal: Of the ids of its prompt.
        said: By decode: where the blocks are.
        until: When they are not asked for any more; of a clock that all workers have.
    """

    prefill: str
    decode: str
    model: str | None
    tokens: int
    seal: bytes
    said: bytes
    until: float


class TurnStore(Protocol):
    """Turns that the workers of a gateway have in common."""

    def put(self, key: bytes, kept: KeptTurn) -> None: ...

    def get(self, key: bytes) -> KeptTurn | None: ...

    def take(self, key: bytes) -> bool:
        """It is there no more. Whether it was: one of those that take it hears so."""


class ChatTurn:
    """One turn, while it is served.

    Attributes:
        keys: Of the messages up to each, and of whose they are; the last one is of all.
        prefill: Id of the engine that has read its prompt.
        tokens: Of that prompt; 0 until they are known.
        said: What decode says of its blocks; empty until it does.
    """

    def __init__(self, keys: Sequence[bytes], model: str | None) -> None:
        self.keys = keys
        self.model = model
        self.prefill = ""
        self.tokens = 0
        self.seal = b""
        self.said = b""
        self._half = b""

    def prefilled(self, engine: str, reply: Json) -> None:
        raw = reply.get(FIELD)
        if isinstance(raw, Raw) and (ids := _read_ids(raw)) and (seal := _seal(ids)):
            self.prefill, self.tokens, self.seal = engine, len(ids), seal

    def hears(self, piece: bytes) -> None:
        """Hear decode's answer; a whole one, or what is no usual piece of a stream."""
        if self.said or len(self._half) + len(piece) > MOST_SAID_BYTES:
            self._half = b""
            return
        if not self._half and piece.startswith(b"{"):
            # No stream.
            self._read(piece)
            return
        events, self._half = sse.cut_events(self._half + piece)
        for event in events:
            if _NAME in event:
                self._read(sse.payload(event))

    def _read(self, document: bytes) -> None:
        try:
            found = parse_object(document).get(nixl.FIELD)
        except BadRequest:
            return
        if isinstance(found, Raw) and found not in nixl.NOTHING:
            self.said = bytes(found)


class KvReadBack:
    """
    Attributes:
        turns: Key -> what was kept by this worker, the oldest first.
        outcomes: Of turns for which something was kept.
        held_bytes: Of what decode engines said.
    """

    def __init__(
        self,
        upstream: Upstream,
        clock: Callable[[], float] = monotonic,
        shared: TurnStore | None = None,
    ) -> None:
        """`shared`: with the other workers, where there are any."""
        self._upstream = upstream
        self._shared = shared
        self._clock = clock
        self._began = clock()
        self._forgotten: dict[str, float] = {}
        self.turns: OrderedDict[bytes, KeptTurn] = OrderedDict()
        self.outcomes: Counter[str] = Counter(
            dict.fromkeys(("sent", "has_it", "expired", "other_prompt", "unknown_prompt"), 0)
        )
        self.held_bytes = 0

    def turn(self, call: Call, owner: str) -> ChatTurn | None:
        """Return the turn of a chat; None if nothing is read back, now or next time. `owner`: name of its API key."""
        if call.path != CHAT or not tokenize.asks_for_all(call):
            return None
        messages = call.body.get("messages")
        if not isinstance(messages, Raw) or len(messages) > MOST_CHAT_BYTES:
            return None
        if not is_text_alone(messages):
            return None
        keys = _keys(call, owner, messages)
        return ChatTurn(keys, call.model) if keys else None

    async def asked(self, turn: ChatTurn, call: Call, leg: Leg, engine: Instance) -> Leg:
        """The leg to prefill, with decode's blocks if there are some that it lacks."""
        kept = self._take(turn, engine.id)
        body = {**leg.body, ASK: Raw(b"true")}
        if kept is not None:
            params = nixl.read_back(kept.said, kept.tokens)
            if params is None:
                self.outcomes["unknown_prompt"] += 1
            elif await self._is_of(kept, call, engine):
                body[nixl.FIELD] = params
                self.outcomes["sent"] += 1
        return msgspec.structs.replace(leg, body=body)

    def keep(self, turn: ChatTurn, decode: str) -> None:
        """The turn has been answered."""
        if not turn.said or not turn.tokens:
            return
        kept = KeptTurn(
            turn.prefill,
            decode,
            turn.model,
            turn.tokens,
            turn.seal,
            turn.said,
            self._clock() + KEPT_SECONDS,
        )
        self._drop(turn.keys[-1])
        self.turns[turn.keys[-1]] = kept
        self.held_bytes += len(kept.said)
        if self._shared is not None:
            self._shared.put(turn.keys[-1], kept)
        while len(self.turns) > MOST_TURNS or self.held_bytes > MOST_HELD_BYTES:
            self._drop(next(iter(self.turns)))

    def forget(self, engine_or_model: str) -> None:
        """Read nothing back of an engine that began anew or has other weights, or of a model."""
        for key, kept in list(self.turns.items()):
            if engine_or_model in (kept.decode, kept.model):
                self._drop(key)
        now = self._clock()
        known = self._forgotten.items()
        self._forgotten = {one: when for one, when in known if now < when + KEPT_SECONDS}
        self._forgotten[engine_or_model] = now

    def _take(self, turn: ChatTurn, prefill: str) -> KeptTurn | None:
        """The longest beginning of the conversation that is kept, which is no more after this."""
        for key in reversed(turn.keys[:-1]):
            kept = self.turns.get(key) or self._others(key)
            if kept is None:
                continue
            if kept.until < self._clock():
                self._drop(key)
                self.outcomes["expired"] += 1
                continue
            if kept.prefill == prefill:
                # It stays: this call may yet fail, and be another engine's.
                self.outcomes["has_it"] += 1
                return None
            # Another worker may have taken it meanwhile.
            if self._drop(key):
                return kept
        return None

    def _others(self, key: bytes) -> KeptTurn | None:
        """Of another worker, where it is not of what this one has forgotten."""
        kept = None if self._shared is None else self._shared.get(key)
        if kept is None:
            return None
        since = max(self._forgotten.get(one or "", 0.0) for one in (kept.decode, kept.model))
        return kept if kept.until - KEPT_SECONDS > max(since, self._began) else None

    async def _is_of(self, kept: KeptTurn, call: Call, engine: Instance) -> bool:
        """Whether the prompt begins with that of the kept turn, as this engine reads it."""
        question = Leg(engine, tokenize.PATH, tokenize.question(call))
        try:
            async with asyncio.timeout(ASK_SECONDS):
                reply = await self._upstream.ask(question, call)
        except (GatewayError, TimeoutError):
            self.outcomes["unknown_prompt"] += 1
            return False
        raw = reply.get("tokens")
        ids = _read_ids(raw) if isinstance(raw, Raw) else None
        if ids is None:
            self.outcomes["unknown_prompt"] += 1
            return False
        same = len(ids) > kept.tokens and _seal(ids[: kept.tokens]) == kept.seal
        if not same:
            self.outcomes["other_prompt"] += 1
        return same

    def _drop(self, key: bytes) -> bool:
        """Whether it was there, for any worker, and no other call has taken it."""
        kept = self.turns.pop(key, None)
        if kept is not None:
            self.held_bytes -= len(kept.said)
        return kept is not None if self._shared is None else self._shared.take(key)


def _keys(call: Call, owner: str, messages: Raw) -> list[bytes]:
    """Of each beginning of the conversation; empty where it is too long, or none."""
    try:
        each = _messages(messages)
    except UNREADABLE:
        return []
    if len(each) > MOST_MESSAGES:
        return []
    # Ids are compared as well: what is not in a key costs a question, and no wrong answer.
    whose: Any = [owner, call.model or "", call.body.get("cache_salt")]
    digest = blake2b(encode(whose), digest_size=16)
    keys = []
    for message in each:
        digest.update(b"%d:" % len(message))
        digest.update(bytes(message))
        keys.append(digest.digest())
    return keys


def _read_ids(raw: Raw) -> list[int] | None:
    if len(raw) > MOST_IDS_BYTES:
        return None
    try:
        return _ids(raw)
    except UNREADABLE:
        return None


def _seal(ids: Sequence[int]) -> bytes:
    try:
        return blake2b(array("q", ids).tobytes(), digest_size=32).digest()
    except OverflowError:
        # No token of any model; nothing is equal to it.
        return b""
