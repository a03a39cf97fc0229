"""What the engine's process and a rank's say to each other, over two socket pairs of theirs.

    orders     Order ->  <- Answer, if it is asked for; in turn, on the core's thread
    events     <- Event; at any time, and at least every BEAT_SECONDS

They are pickled: both ends are one program, and nothing else can reach the pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from pdgate.engine.layout import Layout
from pdgate.engine.ranks.seats import RankSeat
from pdgate.engine.settings import EngineSettings
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.workers import MessengerWorker

BEAT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Start:
    """The first word to a rank.

    Attributes:
        layout: Of the whole engine.
        kv_port: For the rank's KV side; 0 for any.
        engine_id: What peers know the engine by, which its ranks have in common.
    """

    settings: EngineSettings
    layout: Layout
    place: RankSeat
    api_port: int
    kv_port: int
    model_root: str
    state_bytes: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class RankOrder:
    """A method of process.Desk or of the rank's connector to call; `answers`: an Answer is waited for."""

    name: str
    words: tuple[Any, ...]
    answers: bool


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """
    Attributes:
        refused: Why the order cannot be obeyed (ValueError).
        broken: Any other exception of the rank's, whose log has the traceback.
    """

    value: Any = None
    refused: str = ""
    broken: str = ""


@dataclass(frozen=True, slots=True)
class RankReady:
    """The answer to `Start`.

    Attributes:
        worker: Its address for peers.
        kv_address, server_info: As the rank's connector has them; those of the first rank are the engine's.
    """

    worker: MessengerWorker
    kv_address: tuple[str, int]
    server_info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankEvent:
    """A method of the core to call, or of the engine's `RanksConnector`; "gauges" is the sign of life.

    Attributes:
        counts: Of the rank's hand-overs until now, as COUNTED names them.
    """

    name: str
    words: tuple[Any, ...]
    counts: tuple[float, ...]


COUNTED: Final = tuple(
    one.name for one in fields(MessengerCounters) if not one.name.startswith("_")
)


def counts(counters: MessengerCounters) -> tuple[float, ...]:
    return tuple(getattr(counters, name) for name in COUNTED)


@dataclass(frozen=True, slots=True)
class KnownShard:
    """Tokens that the prefix cache has, as `Arrival.cached_tokens` says it."""

    tokens: int

    def __call__(self) -> int:
        return self.tokens
