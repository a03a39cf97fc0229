"""Question to an engine that is silent, outside the prober's turns.

GET /health on a fresh connection, which an API server answers that lives, and then /metrics on the
same: what an engine core counts it tells nowhere else. What /health answers does not matter here, as
an engine that says 503 is at work on what it has.

Of a prefill engine that says that it has nothing to do, while decode engines wait for what they were
to ask of it, neither tells whether it was asked and stands still, or was not asked yet. So it gets a
prompt of one token, which a core that lives reads at once.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from pdgate.gateway.engine_metrics.page import MetricsPage, parse_in_turns
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.one_shot import AskFailed, Gone, OneShotClient, Short
from pdgate.protocols.call import COMPLETIONS, encode
from pdgate.protocols.instance import Instance

log = logging.getLogger(__name__)

LONGEST_SECONDS: Final = 60.0
"""For an answer to /health; asked again then."""

PAGE_SECONDS: Final = 5.0
MAX_PAGE_BYTES: Final = 8 << 20
MAX_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PortRefused:
    """A port that nothing listens at."""


@dataclass(frozen=True, slots=True)
class Mute:
    """No answer, whyever."""


@dataclass(frozen=True, slots=True)
class Unasked:
    """This host had no socket to ask with."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Its API server lives; `page` is None where it does not tell what it counts."""

    page: MetricsPage | None


Word = PortRefused | Mute | Unasked | Answered


async def question(access: EngineAccess, engine: Instance) -> Word:
    """Returns when it is answered, or cannot be."""
    try:
        with access.visit(engine.url) as visit:
            async with asyncio.timeout(LONGEST_SECONDS):
                await visit.get("/health")
            return Answered(await _page(visit, engine))
    except Short:
        return Unasked()
    except Gone as gone:
        return PortRefused() if gone.refused else Mute()
    except (AskFailed, TimeoutError):
        return Mute()


async def reads_a_token(access: EngineAccess, engine: Instance, model: str) -> bool | None:
    """Whether its core read the prompt; None if there is no answer."""
    asked = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0}
    try:
        with access.visit(engine.url) as visit:
            async with asyncio.timeout(LONGEST_SECONDS):
                said = await visit.post(COMPLETIONS, encode(asked), most_bytes=MAX_ANSWER_BYTES)
    except (AskFailed, TimeoutError) as why:
        log.debug("%s: no answer to a prompt of one token: %s", engine.id, why)
        return None
    return said.status == 200


async def _page(visit: OneShotClient, engine: Instance) -> MetricsPage | None:
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            said = await visit.get("/metrics", accept="text/plain", most_bytes=MAX_PAGE_BYTES)
    except (AskFailed, TimeoutError) as why:
        log.debug("%s: no /metrics: %s", engine.id, why)
        return None
    return await parse_in_turns(said.body, engine.dp_rank) if said.status == 200 else None
