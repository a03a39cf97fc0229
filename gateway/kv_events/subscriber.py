"""Subscriber of one publisher: connections on one side, the sequence of its batches on the other.

    SUB      topic | number | batch                        --> Sequence.live
    DEALER   asks "" | first number; "" | topic | number | batch, ... the end
                                                           --> Sequence.replayed, replay_over
    the first is lost                                      --> Sequence.doubt

A task for each connection, which makes it anew when it ends. As much is taken as TURN_SECONDS allow; the rest waits in the
kernel and at the publisher, so that a burst, or the replay of a long history, holds up no call and fills no memory: what is here
of a publisher is one message of each connection, of MAX_BATCH_BYTES at most, and what is read ahead of it (less than 512 KiB).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from pdgate.cluster.zmtp import dialled
from pdgate.cluster.zmtp.wire import EndedConnection, Wire
from pdgate.gateway.kv_events.events import MOST_BATCH_BYTES
from pdgate.gateway.kv_events.sequence import Sequence, SequenceCounts
from pdgate.gateway.kv_events.sources import EventSource

TURN_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.009
"""Between two turns of a feed that has more: a tenth of a core is all it gets."""

REPLAY_SECONDS: Final = 5.0
"""Of silence, after which a replay has failed."""

IDLE_SECONDS: Final = 15.0
"""Of silence, after which it is asked whether anything was missed."""

SETTLE_SECONDS: Final = 2.0
"""After connecting; then it is asked for the first time."""

FIRST_WAIT_SECONDS: Final = 0.1
MOST_WAIT_SECONDS: Final = 2.0
"""Before a connection is made anew, twice as long each time."""

MAX_BATCH_BYTES: Final = 2 * MOST_BATCH_BYTES
"""Of a message; a longer one ends its connection."""

END: Final = b"\xff" * 8
NUMBER_BYTES: Final = 8

Taken = Callable[[bytes], None]

log = logging.getLogger(__name__)


class Subscriber:
    """
    Attributes:
        counts: Of batches, gaps, replays.
        sequence: Of the publisher's batches.
        malformed: Messages that were no batches.
        connected: To the publisher, as far as the network says.
    """

    def __init__(
        self,
        source: EventSource,
        taken: Taken,
        forget: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            taken: Gets every batch, in order.
            forget: Told when what was taken is not true any more.
        """
        self.source = source
        self.counts = SequenceCounts()
        self.malformed = 0
        self.connected = False
        self.taken, self.forget = taken, forget
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.sequence = Sequence(self, self.counts, replays=bool(source.replay_endpoint))
        self._first_asked: int | None = None
        self._heard = clock()
        self._turn_ends = 0.0
        self._asking: Wire | None = None
        self._listening = self._loop.create_task(
            self._keep(source.endpoint, dialled.SUB, self._hear, self._lost), name="kv-events"
        )
        self._repeating = self._replays()
        self.sequence.start()

    @property
    def certain(self) -> bool:
        """Whether it hears the engine of which it has taken all that it took."""
        return self.connected and self.sequence.settled

    def close(self) -> None:
        self._listening.cancel()
        if self._repeating is not None:
            self._repeating.cancel()

    def ask(self, first: int) -> None:
        self._first_asked = first
        self._heard = self._clock()
        self._ask()

    def look(self) -> None:
        """Called about once a second: is it too quiet?"""
        silent_seconds = self._clock() - self._heard
        if self.sequence.replaying:
            if silent_seconds > REPLAY_SECONDS:
                # What is still to come of this replay must not be taken for the next.
                if self._repeating is not None:
                    self._repeating.cancel()
                self._asking = self._first_asked = None
                self._repeating = self._replays()
                self.sequence.replay_failed()
        elif silent_seconds > IDLE_SECONDS:
            self._heard = self._clock()
            self.sequence.check()

    def _replays(self) -> asyncio.Task[None] | None:
        at = self.source.replay_endpoint
        if not at:
            return None
        return self._loop.create_task(
            self._keep(at, dialled.DEALER, self._hear_replays, lambda: None), name="kv-replays"
        )

    async def _keep(
        self,
        endpoint: str,
        kind: str,
        talk: Callable[[Wire], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        """Talks there, until it is cancelled; `lost`: a connection that there was."""
        wait = FIRST_WAIT_SECONDS
        while True:
            wire: Wire | None = None
            try:
                wire = await dialled.dial(
                    endpoint, kind, MAX_BATCH_BYTES, self._turn, self.source.proven
                )
                wait = FIRST_WAIT_SECONDS
                await talk(wire)
            except EndedConnection:
                self.malformed += 1
                wait = MOST_WAIT_SECONDS
            except (OSError, EOFError, UnicodeError):
                # It is not there, or not any more, or has a name that none can have.
                pass
            except Exception:  # the last stop of a task: what is heard later counts again
                log.exception("%s: what it published could not be taken", endpoint)
            finally:
                if wire is not None:
                    wire.close()
            if wire is not None:
                lost()
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT_SECONDS)

    async def _turn(self) -> None:
        if self._loop.time() > self._turn_ends:
            await asyncio.sleep(REST_SECONDS)
            self._turn_ends = self._loop.time() + TURN_SECONDS

    def _lost(self) -> None:
        self.connected = False
        self.sequence.doubt()

    async def _hear(self, wire: Wire) -> None:
        """Raises EndedConnection, OSError, EOFError."""
        dialled.subscribe(wire, self.source.topic)
        self.connected = True
        # A subscription takes a moment, in which something may have been missed.
        self._heard = min(self._heard, self._clock() - IDLE_SECONDS + SETTLE_SECONDS)
        while True:
            parts = await wire.receive()
            self._heard = self._clock()
            if len(parts) != 3 or len(parts[1]) != NUMBER_BYTES:
                self.malformed += 1
            else:
                self.sequence.live(int.from_bytes(parts[1]), parts[2])

    def _ask(self) -> None:
        """A question is for the publisher that is there now; else it waits for one."""
        if self._first_asked is not None and self._asking is not None:
            self._asking.send((b"", self._first_asked.to_bytes(NUMBER_BYTES)))
            self._first_asked = None

    async def _hear_replays(self, wire: Wire) -> None:
        """Raises EndedConnection, OSError, EOFError."""
        self._asking = wire
        try:
            self._ask()
            while True:
                parts = await wire.receive()
                self._heard = self._clock()
                # Older vLLM leaves the topic out.
                if len(parts) not in (3, 4) or len(parts[-2]) != NUMBER_BYTES:
                    self.malformed += 1
                elif parts[-2] == END:
                    self.sequence.replay_over()
                else:
                    self.sequence.replayed(int.from_bytes(parts[-2]), parts[-1])
        finally:
            if self._asking is wire:
                self._asking = None
