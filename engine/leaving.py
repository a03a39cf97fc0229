"""The last wait of an engine that is asked to end: for KV that others still need of it.

Prefill has answered, and decode is told of pages that it has yet to read; or layers are on
their way into decode's pages. All of that holds pages here, so an engine without a page in
use owes nobody anything. What nobody comes for ends with its lease.
"""

import asyncio
import logging
from collections.abc import Callable

from pdgate.engine.core import EngineCore

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
LAST_READ_SECONDS = 5.0
"""For readers that began while the lease lasted."""


async def settle_kv(core: EngineCore, lease_seconds: float, hurry: Callable[[], bool]) -> None:
    """Until no page is in use, and not longer than leases can last, or once `hurry` says so.

    Nothing new is to come: all leases have begun.
    """
    if core.alive and core.gauges.blocks_used:
        log.info("waiting for %d pages that others are to have", core.gauges.blocks_used)
    try:
        async with asyncio.timeout(lease_seconds + LAST_READ_SECONDS):
            # The core's thread tells nobody of its pages, and this is no hot path.
            while core.alive and core.gauges.blocks_used and not hurry():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        log.warning("%d pages were still in use at the end", core.gauges.blocks_used)
