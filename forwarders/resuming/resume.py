"""Resumption of one call whose stream another engine may take up, as execution sees it.

resuming = Resuming.of(call, record, deliver, 3)    None if the call cannot be resumed
resuming.call, resuming.deliver                     in place of the call and its deliver
resuming.why_not(error, prefill)                    empty if another engine can go on
resuming.rest()                                     the call that asks it to
"""

from typing import Self

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Deliver, Record
from pdgate.forwarders.resuming.continuation import asking_for_ids, continuation, limit
from pdgate.forwarders.resuming.eligible import WANTED, more_than_text, why_not
from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.forwarders.resuming.relay import Relay
from pdgate.forwarders.resuming.rewriting import Rewriting
from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineFailed, EngineRejected, GatewayError


class Resuming:
    """
    Attributes:
        call: The client's, with token ids asked for.
        cause: The first break, which the client gets if the stream ends with a later one.
    """

    def __init__(self, call: Call, deliver: Deliver, most: int) -> None:
        self.call = asking_for_ids(call)
        self._asked = call
        self._deliver = deliver
        self._left = most
        self._journal = StreamJournal()
        self.cause: GatewayError | None = None
        self._refused = ""
        self._broke_at: int | None = None
        self._shows_ids = call.value(WANTED) is True
        options = call.value("stream_options", {})
        self._counts = isinstance(options, dict) and options.get("include_usage") is True

    @classmethod
    def of(cls, call: Call, record: Record, deliver: Deliver, most: int) -> Self | None:
        record.not_resumed = why_not(call)
        return None if record.not_resumed else cls(call, deliver, most)

    async def deliver(self, answer: Answer, record: Record) -> None:
        at = _engine(record)
        rewrite = None
        if record.committed is None:
            # Whatever an earlier attempt began, the client has nothing of it.
            self._journal = StreamJournal()
            self._journal.lost = self._refused
        else:
            rewrite = Rewriting(self.call, self._journal).event
            record.resumed += 1
        if not _is_stream(answer):
            if rewrite is not None:
                raise EngineFailed("the engine answered with no stream", at=at)
            self._journal.lost = "no stream"
            await self._deliver(answer, record)
            return
        relay = Relay(
            answer,
            self._journal,
            at,
            rewrite=rewrite,
            shows_ids=self._shows_ids,
            counts=self._counts,
        )
        await self._deliver(relay, record)

    def is_refused(self, error: GatewayError, record: Record) -> bool:
        """The engine refuses a call only for the token ids that it asks for.

        SGLang, for one, has no ids in the streams of chats, and answers so (its #30917).
        """
        ours = record.committed is None and not (self._shows_ids or self._refused)
        return ours and isinstance(error, EngineRejected) and WANTED.encode() in error.body

    def without_ids(self) -> Call:
        """The call as the client asked it, which cannot be resumed."""
        self.call, self._refused = self._asked, "the engine refuses to return token ids"
        return self.call

    def why_not(self, error: GatewayError, prefill: str) -> str:
        """What keeps another engine from going on after this break; empty for nothing."""
        self.cause = self.cause or error
        return self._why_not(error) or self._why_not_again(error, prefill)

    def rest(self) -> Call:
        """The call for the rest of the answer."""
        self._left -= 1
        return continuation(self.call, self._journal)

    def _why_not(self, error: GatewayError) -> str:
        journal = self._journal
        journal.forget()
        if journal.lost:
            return journal.lost
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
