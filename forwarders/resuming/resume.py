"""Resumption of one call whose stream another engine may take up, as execution sees it.

resuming = Resuming.of(call, record, deliver, 3)    None if the call cannot be resumed
resuming.call, resuming.deliver                     in place of the call and its deliver
resuming.why_not(error, prefill)                    empty if another engine can go on
resuming.rest()                                     the call that asks it to

A call that may give way (pausing.py) is resumed as well, and then also one that is no stream: its engines stream,
and gathered.py makes one answer of the events.
"""

from typing import Self

from pdgate.forwarders.base import Answer
from pdgate.forwarders.kv_lease import KvLease
from pdgate.forwarders.record import Deliver, Record
from pdgate.forwarders.resuming.continuation import asking_for_ids, continuation, limit
from pdgate.forwarders.resuming.eligible import WANTED, more_than_text, why_not
from pdgate.forwarders.resuming.gathered import (
    Gathering,
    GatheringRoom,
    as_stream,
    why_not_gathered,
)
from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.forwarders.resuming.relay import Relay
from pdgate.forwarders.resuming.rewriting import Rewriting
from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineFailed, EngineRejected, GatewayError
from pdgate.protocols.fields import is_true


class Resuming:
    """
    Attributes:
        call: The client's, with token ids asked for, apart from KV that was late.
        cause: The first break, which the client gets if the stream ends with a later one.
    """

    def __init__(
        self, call: Call, deliver: Deliver, most: int, room: GatheringRoom | None = None
    ) -> None:
        self._asked = call
        self._gathering: Gathering | None = None
        self._whole = deliver
        if not call.streams:
            call, self._gathering = as_stream(call), Gathering(call, deliver, room)
            deliver = self._gathering.deliver
        self.call = asking_for_ids(call)
        self._deliver = deliver
        self._relay: Relay | None = None
        self._paused = self._passes = False
        self._text: bool | None = None
        self._left = most
        self._journal = StreamJournal()
        self.cause: GatewayError | None = None
        self._refused = ""
        self._broke_at: int | None = None
        self._shows_ids = is_true(call.value(WANTED))
        options = self.call.value("stream_options", {})
        self._counts = isinstance(options, dict) and is_true(options.get("include_usage"))

    @classmethod
    def of(
        cls,
        call: Call,
        record: Record,
        deliver: Deliver,
        most: int,
        *,
        gathers: bool = False,
        room: GatheringRoom | None = None,
    ) -> Self | None:
        """`gathers`: one that is no stream can be resumed, too; `room`: for its answer."""
        if gathers and call.api is not None:
            record.not_resumed = "another route"
        elif gathers and not call.streams:
            record.not_resumed = why_not_gathered(call) or why_not(as_stream(call))
        else:
            record.not_resumed = why_not(call)
        return None if record.not_resumed else cls(call, deliver, most, room)

    def close(self) -> None:
        """The call is over."""
        if self._gathering is not None:
            self._gathering.close()

    def has_begun(self, record: Record) -> bool:
        """What follows must go on with what has been said."""
        if self._gathering is not None:
            return self._gathering.begun
        return record.committed is not None

    def as_asked(self, call: Call) -> Call:
        """The client's call for the record, under the id of this attempt."""
        return self._asked.retried(call.attempt_id)

    async def deliver(self, answer: Answer, record: Record) -> None:
        at = _engine(record)
        rewrite = None
        if not self.has_begun(record):
            # Whatever an earlier attempt began, the client has nothing of it.
            self._journal = StreamJournal()
            self._journal.lost = self._refused
        else:
            rewrite = Rewriting(self.call, self._journal).event
            if not self._paused:
                record.resumed += 1
        self._paused = self._passes = False
        if not _is_stream(answer):
            if rewrite is not None:
                raise EngineFailed("the engine answered with no stream", at=at)
            self._journal.lost = "no stream"
            self._passes = True
            await self._whole(answer, record)
            return
        relay = self._relay = Relay(
            answer,
            self._journal,
            at,
            self.call,
            rewrite=rewrite,
            shows_ids=self._shows_ids,
            counts=self._counts,
        )
        try:
            await self._deliver(relay, record)
        finally:
            self._relay = None

    def is_refused(self, error: GatewayError, record: Record) -> bool:
        """The engine refuses a call only for the token ids that it asks for.

        SGLang, for one, has no ids in the streams of chats, and answers so (its #30917).
        """
        ours = not self.has_begun(record) and not (self._shows_ids or self._refused)
        return ours and isinstance(error, EngineRejected) and WANTED.encode() in error.body

    def without_ids(self) -> Call:
        """The call as the client asked it, which cannot be resumed."""
        self.call, self._refused = self._asked, "the engine refuses to return token ids"
        return self.call

    @property
    def left(self) -> int:
        """How often the answer may still be taken up."""
        return self._left

    def asks_apart(self, late: KvLease, word: str) -> None:
        """From now on, of engines that may have kept KV that was late."""
        self.call, self._asked = late.apart(self.call, word), late.apart(self._asked, word)

    def why_not(self, error: GatewayError, prefill: str, untold: bool = False) -> str:
        """What keeps another engine from going on after this break; empty for nothing.

        `untold`: it may be the hand-over's fault, which the next attempt does without.
        """
        self.cause = self.cause or error
        return self._why_not(error) or ("" if untold else self._why_not_again(error, prefill))

    def begins_anew(self) -> bool:
        """Whether the answer can, as the client has nothing of it: then what was gathered is forgotten."""
        if self._gathering is None:
            return False
        self._gathering.forget()
        return True

    def rest(self) -> Call:
        """The call for the rest of the answer."""
        self._left -= 1
        return continuation(self.call, self._journal)

    # Of a call that gives way.

    @property
    def said_tokens(self) -> int:
        return len(self._journal.tokens)

    def may_pause(self, record: Record) -> bool:
        """Whether its legs can end now, and the answer go on later with nothing lost."""
        if self._refused or self._passes:
            return False
        if not self.has_begun(record):
            # A relay that no byte has left is about to begin.
            return self._relay is None
        journal = self._journal
        if journal.lost or journal.finish or (self._relay is not None and self._relay.over):
            return False
        if journal.whole < len(journal.tokens) and self.call.value("temperature") != 0:
            return False
        if self._text is None:
            self._text = not more_than_text(self.call)
        most = limit(self.call)
        return self._text and (most is None or journal.whole < most)

    def break_off(self, error: GatewayError) -> bool:
        """Ends what is relayed now, at an event; False if nothing is."""
        return self._relay is not None and self._relay.break_off(error)

    def later(self, record: Record) -> Call:
        """The call that goes on when it has given way."""
        self._paused = True
        self._journal.forget()
        return continuation(self.call, self._journal) if self.has_begun(record) else self.call

    def _why_not(self, error: GatewayError) -> str:
        journal = self._journal
        journal.forget()
        if journal.lost:
            return journal.lost
        if journal.finish:
            return "nothing is left to say"
        if not error.worth_retrying:
            return "no engine could do better"
        if not self._left:
            return "too many breaks"
        if more_than_text(self.call):
            return "more than text in the prompt"
        if journal.whole < len(journal.tokens) and self.call.value("temperature") != 0:
            return "several tokens came at once, and other ones would be drawn"
        most = limit(self.call)
        return "" if most is None or journal.whole < most else "nothing is left to say"

    def _why_not_again(self, error: GatewayError, prefill: str) -> str:
        """A call that ends two engines at the same token would end a third one as well."""
        if type(error) is not EngineFailed or error.at == prefill:
            return ""
        before, self._broke_at = self._broke_at, len(self._journal.tokens)
        return "two engines failed at the same token" if before == self._broke_at else ""


def _engine(record: Record) -> str:
    """Whose answer has just begun."""
    return next(leg.instance.id for leg in reversed(record.legs) if leg.first_byte is not None)


def _is_stream(answer: Answer) -> bool:
    kinds = [found for name, found in answer.headers if name == b"content-type"]
    return bool(kinds) and kinds[0].startswith(b"text/event-stream")
