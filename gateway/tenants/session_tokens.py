"""Tokens of a realtime session: what its engine says that it took, counted while it goes on.

A session has no end that could be waited for. So an engine's event that says what a response took is counted when it has
passed, and the session goes on only if its key has something left:

    {"type": "transcription.done", "text": "...", "usage": {"prompt_tokens": 9, "completion_tokens": 4, ...}}
    {"type": "response.done", "response": {..., "usage": {"input_tokens": 9, "output_tokens": 4, ...}}}
    {"type": "conversation.item.input_audio_transcription.completed", "usage": {"type": "tokens", "input_tokens": 9, ...}}

Events with a piece of an answer (`*.delta`) are counted as one generated token each, until the engine says how many it were.

Source: vLLM 0.32.0, entrypoints/speech_to_text/realtime/protocol.py, TranscriptionDone; OpenAI API reference,
"Realtime", "Server events".
"""

from collections.abc import Callable
from operator import add
from typing import Final

import msgspec

from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.tenants.account import TokensTaken
from pdgate.gateway.tenants.tenants import HeldTokens, Tenants
from pdgate.protocols.bounds import MOST
from pdgate.protocols.call import Raw
from pdgate.protocols.fields import UNREADABLE
from pdgate.protocols.usage import Usage, counts_in, usage_in

ANYTHING: Final = (1, 1)
"""What has to be left, of prompts and of what is generated: a session does not say what it will take."""
MOST_UNTOLD: Final = 64
"""Pieces of an answer, after which they are counted though their engine has not said how many tokens they are."""
MOST_READ_BYTES: Final = 64 << 10
"""Of a message that is read; of a longer one its end is, where what a response took stands behind all that was said."""
_END_BYTES: Final = 4096
NO_USAGE: Final = Raw(b"null")
NO_TOKENS: Final = TokensTaken(calls=0)
_FIRST_BYTES: Final = 256
_PIECE: Final = b'.delta"'
_USAGE: Final = b'"usage"'


class SessionTokens:
    """Tokens of one session of a key."""

    def __init__(self, tenants: Tenants, key_state: KeyState, weigh: Callable[[int], None]) -> None:
        """`weigh`: told of changes of what is held, in bytes."""
        self._weigh = weigh
        self._tenants = tenants
        self._key_state = key_state
        self._held: HeldTokens | None = None
        self._message = bytearray()
        self._longer = self._is_piece = False
        # Pieces whose tokens the engine has not said: all, and those that are counted already.
        self._pieces = self._counted = 0
        self._taken = self._all = NO_TOKENS

    @property
    def usage(self) -> Usage | None:
        """What it has taken, as far as that is settled; at its end all of it. None where its engine said nothing."""
        if not any(self._all):
            return None
        return Usage(self._all.prompt, self._all.generated, self._all.cached)

    async def enter(self) -> None:
        """Raise RateLimited or InsufficientQuota where nothing is left."""
        limits = self._tenants.limits_of(self._key_state)
        if limits:
            self._held = await self._tenants.reserve(self._key_state, limits, ANYTHING, ANYTHING)

    def hear(self, piece: bytes | bytearray) -> None:
        """A part of a message of the engine."""
        if self._is_piece:
            return
        message = self._message
        before = len(message)
        message += piece
        if not self._longer and message.find(_PIECE, 0, _FIRST_BYTES) >= 0:
            self._is_piece = True
            message.clear()
        elif len(message) > MOST_READ_BYTES:
            self._longer = True
            del message[:-_END_BYTES]
        self._weigh(len(message) - before)

    async def heard(self) -> None:
        """The message is whole, and with the client. Raise RateLimited or InsufficientQuota: nothing is left."""
        message, is_piece, longer = bytes(self._message), self._is_piece, self._longer
        self._let_go()
        if is_piece:
            self._pieces += 1
            if self._pieces - self._counted < MOST_UNTOLD:
                return
            self._count_pieces()
        else:
            found = _usage_of(message, longer) if _USAGE in message else None
            if found is None:
                return
            self._count_usage(found)
        if self._held is not None:
            self._settle()
            await self.enter()

    def over(self) -> None:
        """Settle the session; once, at its end."""
        self._let_go()
        self._count_pieces()
        # It is a call of its key.
        self._taken = self._taken._replace(calls=1)
        self._settle()

    def _let_go(self) -> None:
        self._weigh(-len(self._message))
        self._message.clear()
        self._is_piece = self._longer = False

    def _count_usage(self, found: Usage) -> None:
        prompt = min(found.prompt or 0, MOST)
        cached = min(found.cached or 0, prompt)
        generated = min(found.generated or 0, MOST)
        # The pieces before it are part of that, or are its own answer's.
        self._add(prompt, cached, max(0, generated - self._counted))
        self._pieces = self._counted = 0

    def _count_pieces(self) -> None:
        self._add(0, 0, self._pieces - self._counted)
        self._counted = self._pieces

    def _add(self, prompt: int, cached: int, generated: int) -> None:
        all_counts = self._key_state.key.tokens.count_cached
        taken = self._taken
        self._taken = TokensTaken(
            taken.prompt + prompt,
            taken.cached + cached,
            taken.generated + generated,
            0,
            taken.counted + (prompt if all_counts else prompt - cached),
        )

    def _settle(self) -> None:
        taken, self._taken = self._taken, NO_TOKENS
        self._all = TokensTaken(*map(add, self._all, taken._replace(calls=0)))
        held, self._held = self._held, None
        state = self._key_state
        state.add(taken.prompt, taken.cached, taken.generated)
        if held is None:
            limits = self._tenants.limits_of(state)
            if not limits:
                # Keys without limits have what they took in their state, calls too.
                return
            held = HeldTokens(limits)
        self._tenants.give_back(state, held, taken)


class _Response(msgspec.Struct):
    usage: Raw = NO_USAGE


class _EngineEvent(msgspec.Struct):
    usage: Raw = NO_USAGE
    response: _Response | None = None


_read: Final = msgspec.json.Decoder(_EngineEvent).decode


def _usage_of(message: bytes, longer: bool) -> Usage | None:
    """Only where it has its place: clients choose names within a response (`metadata`)."""
    if longer:
        return usage_in(message)
    try:
        event = _read(message)
    except UNREADABLE:
        return None
    response = event.response
    return counts_in(bytes(event.usage if response is None else response.usage))
