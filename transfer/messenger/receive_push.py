"""A load that is written: ask, count, wait. D's side, on a thread of the load's own.

No message says "done": when the count is complete, the pages are there.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.incoming import IncomingPages, ReceivingMemory
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import ANSWER_SECONDS, Peer
from pdgate.transfer.messenger.push_waiter import Waiting
from pdgate.transfer.messenger.receiving import Patience, Receiving
from pdgate.transfer.messenger.source import Moved, Source, Target


@dataclass(frozen=True, slots=True)
class PushReceiver:
    """What every push into an engine needs.

    Attributes:
        closing: Whether the engine ends.
        readers: Names of the processes of our other workers.
    """

    memory: ReceivingMemory
    patience: Patience
    closing: Callable[[], bool]
    readers: Callable[[], Sequence[str]] = tuple


def receive(
    receiver: PushReceiver,
    peer: Peer,
    source: Source,
    target: Target,
    until: float,
    interrupt: Interrupt,
    adrift: Callable[[HandOverError], None],
) -> Moved:
    """What came. When it returns or raises, no byte can land any more.

    `adrift` is called before that if the load has failed and the peer does not say so.
    Raises HandOverError, TransferError.
    """
    with ExitStack() as stack:
        slot = None
        if source.context:
            if receiver.memory.inbox is None:
                raise HandOverError(Why.UNSUPPORTED, "this engine has no room for contexts")
            slot = stack.enter_context(receiver.memory.inbox.taken(until, interrupt))
        incoming = stack.enter_context(
            closing(IncomingPages(receiver.memory, source, target, slot, until))
        )
        now = time.monotonic()
        if until <= now:
            raise HandOverError(Why.TOO_LATE, "no time is left to ask")
        meet_by = now + (source.wait_seconds or ANSWER_SECONDS)
        machine = Receiving(now, min(meet_by, until), until, receiver.patience)
        waiting = Waiting(peer.channel, machine, adrift, receiver.closing, incoming.expect)
        try:
            if source.prompt:
                peer.prefill(source.key, source.prompt, source.lent, receiver.readers())
            interrupt.arm(waiting.cancel)
            peer.say(incoming.message(peer.engine_id, peer.name))
            waiting.run()
        finally:
            waiting.close()
        return incoming.moved()
