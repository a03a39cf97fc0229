"""What a gateway does besides serving calls, for as long as it lives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.probe import Prober
from pdgate.gateway.upstream.client import HttpUpstream

DIRECTORY_SECONDS = 3.0
"""How long the start waits for a directory; without it, those configured are served."""

Job = Callable[[], Coroutine[Any, Any, None]]


@asynccontextmanager
async def running(
    upstream: HttpUpstream, prober: Prober, feed: Feed | None, jobs: Sequence[Job]
) -> AsyncIterator[None]:
    """Calls may come inside the block: engines have been looked at, as far as they answer.

    `jobs` are done until the end of the block, as probing and following the directory are.
    """
    async with upstream, asyncio.TaskGroup() as background:
        always = []
        if feed is not None:
            always.append(background.create_task(feed.run()))
            # Calls that come first should find those who are announced already.
            with suppress(TimeoutError):
                await asyncio.wait_for(feed.listed.wait(), DIRECTORY_SECONDS)
        always += [background.create_task(job()) for job in (prober.run, *jobs)]
        # Engines that are down are found out within the probe's own timeout.
        with suppress(TimeoutError):
            await asyncio.wait_for(prober.first_round.wait(), prober.timeout_seconds + 1)
        yield
        for task in always:
            task.cancel()
