"""Joins of pairs: legs that introduce two engines to each other, sent once before the first call crosses them.

    first call     sends the legs, one after the other   ->  the pair is joined
    calls beside   wait for that, and do not repeat it;  a failure is theirs as well, and each tries another pair
    client leaves  the next call of those that wait begins anew

What is joined is forgotten with the life of either engine: when it refuses connections, and when decode fails over
KV, as it does after a restart that was too short to be seen; for that reason no more than once in REJOIN_SECONDS, as
transfers of others may be under way.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from pdgate.forwarders.base import HandOff, Joining, Leg, Upstream
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import (
    BadRequest,
    EngineFailed,
    EngineRejected,
    EngineTooSlow,
    GatewayError,
)
from pdgate.protocols.instance import Instance

LEG_SECONDS: Final = 30.0
REJOIN_SECONDS: Final = 10.0
MOST_PAIRS: Final = 1 << 16
"""Those of 256 engines of each role; a directory may bring others without end."""

Pair = tuple[str, str, str, str]
"""Ids and URLs, as another engine may have an id of before."""


class Joins:
    """
    Attributes:
        made: Pair -> when it was joined.
    """

    def __init__(
        self,
        upstream: Upstream,
        failed: Callable[[Instance, GatewayError], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`failed`: hears of each leg that does."""
        self._upstream = upstream
        self._failed = failed
        self._clock = clock
        self.made: dict[Pair, float] = {}
        self._under_way: dict[Pair, asyncio.Future[GatewayError | None]] = {}

    async def joined(
        self, forwarder: HandOff, prefill: Instance, decode: Instance, call: Call
    ) -> None:
        """Raises GatewayError."""
        pair = (prefill.id, prefill.url, decode.id, decode.url)
        while pair not in self.made:
            other = self._under_way.get(pair)
            if other is None:
                await self._join(pair, forwarder.join(prefill, decode), call)
                return
            await asyncio.wait((other,))
            # Else the client of the call that joined them has left.
            if not other.cancelled() and (error := other.result()) is not None:
                raise EngineFailed(str(error), at=error.at)

    def gone(self, engine: str) -> None:
        """No process is there any more."""
        for pair in [one for one in self.made if engine in (one[0], one[2])]:
            del self.made[pair]

    def doubt(self, prefill: str, decode: str) -> None:
        """Decode has failed over KV of this prefill."""
        late = self._clock() - REJOIN_SECONDS
        for pair in [one for one in self.made if (one[0], one[2]) == (prefill, decode)]:
            if self.made[pair] < late:
                del self.made[pair]

    async def _join(self, pair: Pair, legs: Joining | None, call: Call) -> None:
        under_way = self._under_way[pair] = asyncio.get_running_loop().create_future()
        try:
            if legs is not None:
                await self._send(legs, call)
            while len(self.made) >= MOST_PAIRS:
                del self.made[next(iter(self.made))]
            self.made[pair] = self._clock()
            under_way.set_result(None)
        except GatewayError as error:
            under_way.set_result(error)
            raise
        finally:
            del self._under_way[pair]
            under_way.cancel()

    async def _send(self, legs: Joining, call: Call) -> None:
        """Raises GatewayError."""
        leg = next(legs, None)
        while leg is not None:
            reply = await self._ask(leg, call)
            try:
                leg = legs.send(reply)
            except StopIteration:
                return
            except BadRequest as error:
                raise EngineFailed(f"cannot be joined: {error}", at=leg.to.id) from None

    async def _ask(self, leg: Leg, call: Call) -> Json:
        try:
            async with asyncio.timeout(LEG_SECONDS):
                return await self._upstream.ask(leg, call)
        except TimeoutError:
            error: GatewayError = EngineTooSlow("did not answer to be joined", at=leg.to.id)
        except EngineRejected as rejected:
            # It was not the client that asked.
            why = f"answered {rejected.answer_status} to {leg.path}, so it cannot be joined"
            error = EngineFailed(why, at=leg.to.id)
        except GatewayError as found:
            error = found
        self._failed(leg.to, error)
        raise error
