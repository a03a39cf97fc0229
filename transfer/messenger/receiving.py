"""D's side of a push, as a state machine. Pure: times are given, nothing is sent or read here.

    asking --met--> writing --all landed--> over, well
       |               |
       |  P failed, P gone (nothing can land any more) ------------> over, failed
       |               |
       |--cancelled, too late--> stopping --stopped, gone--> over, failed
       |                            '--no answer--> adrift --stopped, gone--> over
       '--silent--------------------------------> adrift

Adrift, the load has failed and its waiter knows, but its pages stay taken: a
silent peer may still write, and a late write must find no other request's pages.
"""

from dataclasses import dataclass
from enum import StrEnum

from pdgate.transfer.messenger.errors import HandOverError, Why


class Phase(StrEnum):
    ASKING = "asking"
    WRITING = "writing"
    STOPPING = "stopping"
    ADRIFT = "adrift"
    OVER = "over"


class Say(StrEnum):
    PING = "ping"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds.

    Attributes:
        ping: Between two signs of life that we ask for.
        silence: Without any word from the peer until we hold it for dead.
        stop: Until a cancel must have been confirmed by a peer that has spoken lately.
    """

    ping: float = 2.0
    silence: float = 10.0
    stop: float = 5.0


class Receiving:
    """All times are of one monotonic clock, in seconds.

    Args:
        meet_by: The peer must know the key by then.
        land_by: All must have landed by then.
    """

    def __init__(self, now: float, meet_by: float, land_by: float, patience: Patience) -> None:
        self.phase = Phase.ASKING
        self.error: HandOverError | None = None
        self._patience = patience
        self._meet_by = meet_by
        self._land_by = land_by
        self._heard = now
        self._ping_at = now + patience.ping
        self._stop_by = 0.0

    @property
    def over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do, if nothing happens before."""
        match self.phase:
            case Phase.ASKING | Phase.WRITING:
                return min(self._deadline, self._ping_at, self._heard + self._patience.silence)
            case Phase.STOPPING:
                return self._stop_by
        return float("inf")

    def tick(self, now: float) -> Say | None:
        """What to say now, if anything."""
        match self.phase:
            case Phase.ASKING | Phase.WRITING:
                return self._look(now)
            case Phase.STOPPING if now >= self._stop_by:
                self.phase = Phase.ADRIFT
        return None

    def heard(self, now: float) -> None:
        self._heard = now

    def met(self) -> None:
        """The peer knows the key and writes from now on."""
        if self.phase is Phase.ASKING:
            self.phase = Phase.WRITING

    def landed(self) -> None:
        """The count is complete, so nothing is left to be written."""
        self.phase = Phase.OVER

    def gone(self, error: HandOverError) -> None:
        """Nothing can land any more: refused, failed, stopped, or the peer is dead."""
        self.error = self.error or error
        self.phase = Phase.OVER

    def give_up(self, now: float, error: HandOverError) -> Say | None:
        if self.phase not in (Phase.ASKING, Phase.WRITING):
            return None
        self.error = error
        self.phase = Phase.STOPPING
        self._stop_by = now + self._patience.stop
        return Say.CANCEL

    @property
    def _deadline(self) -> float:
        return self._meet_by if self.phase is Phase.ASKING else self._land_by

    def _look(self, now: float) -> Say | None:
        if now >= self._deadline:
            return self.give_up(now, self._late())
        if now >= self._heard + self._patience.silence:
            say = self.give_up(now, HandOverError(Why.SILENT, "the peer says nothing any more"))
            # It will not confirm the cancel either; a call waits for this.
            self.phase = Phase.ADRIFT
            return say
        if now >= self._ping_at:
            self._ping_at = now + self._patience.ping
            return Say.PING
        return None

    def _late(self) -> HandOverError:
        if self.phase is Phase.ASKING:
            return HandOverError(Why.UNKNOWN, "the peer did not come to know the key in time")
        return HandOverError(Why.TOO_LATE, "not all pages had come by the deadline")
