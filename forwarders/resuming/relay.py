"""Relay of an answer's events, with the journal by which another engine could go on."""

from collections.abc import Callable

from pdgate.forwarders.base import Answer, Sink
from pdgate.forwarders.body_filter import BodyFilter
from pdgate.forwarders.resuming.chunk import read, without_ids
from pdgate.forwarders.resuming.journal import JournalVerdict, StreamJournal
from pdgate.forwarders.resuming.rewriting import usage
from pdgate.protocols import sse
from pdgate.protocols.call import Call
from pdgate.protocols.endings import ending_of
from pdgate.protocols.errors import EngineFailed, EngineGaveUp, GatewayError
from pdgate.protocols.fields import UNREADABLE

MOST_HELD = 64
"""Events without text; what is silent for longer is not half a character."""
MOST_HELD_BYTES = 1 << 20


class Relay(BodyFilter):
    """
    Args:
        at: The engine that answers.
        call: The whole one.
        rewrite: Makes a continuation's events those of the stream; None for the first part.
        shows_ids, counts: The client asked for token ids; for its usage.
    """

    def __init__(
        self,
        answer: Answer,
        journal: StreamJournal,
        at: str,
        call: Call,
        *,
        rewrite: Callable[[bytes], bytes] | None,
        shows_ids: bool,
        counts: bool,
    ) -> None:
        # Ids are taken out, so it is shorter than it was announced.
        super().__init__(answer, same_length=False)
        self._journal = journal
        self._at = at
        self._call = call
        self._rewrite = rewrite
        self._shows_ids = shows_ids
        self._counts = counts
        self._splitter = sse.Splitter()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._finish = b""
        self._broken = False
        self._done = self._started = self._ended = False

    @property
    def over(self) -> bool:
        """All has been said, or it has been broken off."""
        return self._broken or self._done or self._ended

    def break_off(self, error: GatewayError) -> bool:
        """End it here, for a reason of ours; False before it has begun, and when it is over."""
        if self.over or not self._started:
            return False
        self._broken = True
        self.client.ended(error)
        return True

    def start(self, sink: Sink) -> None:
        self._started = True
        super().start(sink)

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        if self._broken:
            return
        out = self._relayed(chunk)
        if self._broken:
            self._end(_gave_up(self._at), out)
        elif out:
            self.client.data(out)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if self._broken:
            return
        self._ended = True
        out = self._relayed(last) if last else b""
        journal = self._journal
        if self._broken:
            error = _gave_up(self._at)
        elif error is None and (journal.finish or journal.lost):
            out += self._released() + self._shown(self._splitter.rest)
        elif error is None:
            error = EngineFailed("the engine ended its answer too early", at=self._at)
        self._end(error, out)

    def _end(self, error: GatewayError | None, out: bytes) -> None:
        """Where all has been said, it does not matter how the connection ends."""
        if error is not None and self._done:
            error = None
        elif error is not None and self._is_whole():
            error = None
            out += self._closing()
        self.client.ended(error, out)

    def _is_whole(self) -> bool:
        """Whether the end that the client has is that of the answer, as it is read of all answers.

        Of what came before it need not be told: that was of the same choice, or the journal is lost.
        """
        if not self._finish or self._journal.lost:
            return False
        ending = ending_of(self._call)
        ending.take(self._finish)
        return ending.whole

    def _relayed(self, chunk: bytes) -> bytes:
        out = []
        try:
            for event in self._splitter.feed(chunk):
                if self._rewrite is not None:
                    event = self._rewrite(event)
                match self._verdict(event):
                    case JournalVerdict.PASS if self._held:
                        out += [self._released(), self._shown(event)]
                    case JournalVerdict.PASS:
                        out.append(self._shown(event))
                    case JournalVerdict.HOLD:
                        self._held.append(event)
                        self._held_bytes += len(event)
                    case JournalVerdict.BROKEN:
                        self._broken = True
                        break
        except (ValueError, LookupError, TypeError, AttributeError):
            # Any way in which an event can be none, or none that can be rewritten.
            self._broken = True
        return b"".join(out)

    def _verdict(self, event: bytes) -> JournalVerdict:
        journal = self._journal
        data = sse.payload(event)
        if journal.lost:
            return JournalVerdict.PASS
        if not data:
            return self._bounded(journal.behind, event)
        if data == b"[DONE]":
            # vLLM has no chunk for a request that it gives up, and ends the stream all the same.
            self._done = journal.finish
            return JournalVerdict.PASS if self._done else JournalVerdict.BROKEN
        try:
            verdict = journal.take(read(data))
        except (*UNREADABLE, OverflowError):
            journal.give_up("an event that is no chunk")
            return JournalVerdict.PASS
        if journal.finish and not self._finish:
            self._finish = event
        return self._bounded(verdict, event)

    def _bounded(self, verdict: JournalVerdict, event: bytes) -> JournalVerdict:
        """The client gets what waits when it is too much."""
        if verdict is JournalVerdict.HOLD and (
            len(self._held) >= MOST_HELD or self._held_bytes + len(event) > MOST_HELD_BYTES
        ):
            self._journal.settle()
            return JournalVerdict.PASS
        return verdict

    def _released(self) -> bytes:
        held, self._held, self._held_bytes = self._held, [], 0
        return b"".join(map(self._shown, held))

    def _shown(self, event: bytes) -> bytes:
        return event if self._shows_ids else without_ids(event)

    def _closing(self) -> bytes:
        """What the engine had still to say: the answer itself is complete."""
        journal = self._journal
        if not self._counts or journal.usage or journal.head is None:
            return sse.DONE
        counted = usage(len(journal.prompt), len(journal.tokens))
        last: dict[str, object] = {**journal.head.as_json(), "choices": [], "usage": counted}
        return sse.event(last) + sse.DONE


def _gave_up(at: str) -> GatewayError:
    return EngineGaveUp("the engine gave the call up", at=at)
