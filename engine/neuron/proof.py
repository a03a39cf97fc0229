"""The KV handshake on the signal plane, where a fleet has a secret (transfer/runtime/handshake.py).

    D  {"type": "handshake", "pdgate": hello} --> P
    D  <-- {"status": "ok", ..., "pdgate": answer}
    D  {"type": "prove", "pdgate": proof} ------> P
    D  <-- {"status": "ok"}                           with a third frame, the MAC, as all that follows

Without a secret, messages are the reference's, without any of this, and P is on loopback alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from pdgate.engine.neuron import messages
from pdgate.engine.neuron.messages import Message
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    MAGIC,
    PROOF_BYTES,
    VERSION,
    Answering,
    Dialling,
    Session,
    Unproven,
)
from pdgate.transfer.runtime.refusals import Reason

PURPOSE: Final = "neuron"
FIELD: Final = "pdgate"
MAX_GUESTS: Final = 1024
MAX_STRANGERS: Final = 128

Answer = Callable[[bytes, Message], Message]
"""To a message of the peer with this ZMQ identity."""


def as_field(data: bytes) -> dict[str, str]:
    return {FIELD: data.hex()}


def from_field(message: Message, length: int) -> bytes:
    """Raises Unproven."""
    said = message.get(FIELD)
    try:
        data = bytes.fromhex(said) if isinstance(said, str) else b""
    except ValueError:
        data = b""
    if len(data) != length:
        raise Unproven(
            f"the peer knows no KV handshake, we speak version {VERSION}", Reason.VERSION
        )
    return data


def sealed(session: Session, message: Message) -> list[bytes]:
    empty, data = messages.encode(message)
    return [empty, data, session.outgoing.mac(data)]


def opened(session: Session, frames: Sequence[bytes]) -> Message:
    """Raises Unproven, ValueError."""
    match frames:
        case [b"", data, mac]:
            session.incoming.check(data, mac)
            return messages.decode([b"", data])
    raise Unproven("a message without a MAC")


class Guests:
    """P's side: peers by their ZMQ identity, and how far each has come."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._strangers: OrderedDict[bytes, Answering] = OrderedDict()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def name(self, who: bytes) -> str:
        """Name of the peer's process, as it was proven; empty where nothing is to be proven."""
        return self._sessions[who].peer if who in self._sessions else ""

    def answer(self, who: bytes, frames: Sequence[bytes], answer: Answer) -> list[bytes]:
        """The frames to say to these. `answer` is for peers that have proven themselves, or need
        not.
        """
        try:
            if self._identity.is_open:
                return messages.encode(answer(who, messages.decode(frames)))
            if len(frames) == 3:
                return self._let_in(who, frames, answer)
            return self._meet(who, messages.decode(frames))
        except Unproven as error:
            self._identity.refusals.add(PURPOSE, error.why)
            return messages.encode(messages.unproven(str(error)))
        except (ValueError, RecursionError) as error:
            return messages.encode(messages.broken(error))

    def _let_in(self, who: bytes, frames: Sequence[bytes], answer: Answer) -> list[bytes]:
        session = self._sessions.get(who)
        if session is None:
            raise Unproven("the KV handshake comes first")
        message = opened(session, frames)
        self._sessions.move_to_end(who)
        return sealed(session, answer(who, message))

    def _meet(self, who: bytes, message: Message) -> list[bytes]:
        """Raises Unproven."""
        match message.get("type"):
            case "handshake":
                hello = from_field(message, HELLO_BYTES)
                if hello[:4] != MAGIC:
                    raise Unproven("that is no KV handshake")
                meeting = Answering(self._identity, [PURPOSE], hello)
                if meeting.refusal:
                    self._identity.refusals.add(PURPOSE, meeting.why)
                else:
                    self._strangers[who] = meeting
                    if len(self._strangers) > MAX_STRANGERS:
                        self._strangers.popitem(last=False)
                return messages.encode({**messages.welcome(), **as_field(meeting.answer)})
            case "prove":
                meeting_before = self._strangers.pop(who, None)
                if meeting_before is None:
                    raise Unproven("the KV handshake comes first")
                session = meeting_before.proven(from_field(message, PROOF_BYTES))
                self._sessions[who] = session
                if len(self._sessions) > MAX_GUESTS:
                    self._sessions.popitem(last=False)
                return sealed(session, messages.proven())
        raise Unproven(
            f"this engine speaks version {VERSION} of the KV handshake, and you speak none",
            Reason.VERSION,
        )


class Host:
    """D's side of one connection to P."""

    def __init__(self, identity: Identity) -> None:
        self._dialling = None if identity.is_open else Dialling(identity, PURPOSE)
        self._session: Session | None = None

    @property
    def name(self) -> str:
        """Name of P's process, as it was proven; empty where nothing is to be proven."""
        return "" if self._session is None else self._session.peer

    def frames(self, message: Message) -> list[bytes]:
        if self._session is None:
            return messages.encode(message)
        return sealed(self._session, message)

    def message(self, frames: Sequence[bytes]) -> Message:
        """Raises Unproven, ValueError."""
        if self._session is None or len(frames) == 2:
            said = messages.decode(frames)
            if self._session is not None and said.get("status") != "error":
                raise Unproven("a message without a MAC")
            return said
        return opened(self._session, frames)

    def handshake(self) -> Message:
        """What to ask first."""
        hello = {} if self._dialling is None else as_field(self._dialling.hello)
        return {**messages.handshake(), **hello}

    def welcomed(self, said: Message) -> list[bytes] | None:
        """What to send then, if something is to be proven; it is answered with a MAC.

        Raises Unproven.
        """
        if self._dialling is None:
            return None
        proof, self._session = self._dialling.answered(from_field(said, ANSWER_BYTES))
        return messages.encode({"type": "prove", **as_field(proof)})
