"""Prices of prefill, decode and cache: no call is worth more than what it needs costs.

Whatever a second of prefill, one of decode, and a block kept for a second are priced at, what a fleet has
of them is worth at least as many calls as it serves in time, if each costs no more than one:

    calls <= prices of all there is + sum over calls of max(0, 1 - price of what it needs)

(Lagrangian duality.) A shared block is computed again or kept, whichever is cheaper. The best prices
are looked for; any others are a bound as well, only a looser one. A trace is also cut into pieces, each
with prices of its own, so that what is idle in one is of no use in another.
"""

from collections.abc import Sequence
from math import exp, log
from typing import Final

from pdgate.lab.simulator.bound.needs import Need, Pools, SharedBlocks

SHRINKS: Final = 0.5
LEAST_STEP: Final = 0.05
"""Of a price's logarithm."""
FIRST_STEP: Final = 1.0
LEAST_GAIN: Final = 1e-4
"""Of the calls, for which it is worth to go on."""
BEYOND: Final = (1.0, 0.9)
"""Shares of calls that are over; those that are so later pay nothing for decode, which has less time then."""


def priced(needs: Sequence[Need], pools: Pools) -> float:
    """How many of them, parts counted as such."""
    if not needs:
        return 0.0
    return min(_Market(needs, pools, share).least() for share in BEYOND)


class _Market:
    """What there is, of one piece of a trace."""

    def __init__(self, needs: Sequence[Need], pools: Pools, share: float) -> None:
        begins = needs[0].at
        self._needs = needs
        self._begins = begins
        overs = sorted(need.over for need in needs)
        last = self._last = overs[min(len(overs) - 1, int(share * len(overs)))]
        seconds = needs[-1].at + pools.window - begins
        # Engines of both kinds sell seconds of both at one price.
        self._apart = pools.apart
        reads = pools.reads if pools.apart else pools.all
        self._prefill = reads * (seconds if pools.apart else overs[-1] - begins)
        self._decode = pools.answers * (last - begins) if pools.apart else 0.0
        self._cache = pools.cache_blocks * seconds

    def least(self) -> float:
        """The least bound that was found, by steps along each price that get shorter."""
        everything = len(self._needs)
        if self._has_all():
            return float(everything)
        enough = LEAST_GAIN * everything
        scales = (self._prefill, self._decode, self._cache)
        # A third of all calls for all that there is of each: not far from anything.
        logs = [log(everything / 3 / (scale or 1.0)) for scale in scales]
        best, step = self._bound(logs), FIRST_STEP
        while step > LEAST_STEP:
            better = False
            for number in range(3):
                if number == 1 and not self._apart:
                    continue
                for way in (step, -step):
                    tried = [*logs]
                    tried[number] += way
                    found = self._bound(tried)
                    if found < best - enough:
                        best, logs, better = found, tried, True
                        break
            # Both sides at once: along one alone a fleet in balance has an edge.
            for one, other in ((step, step), (-step, -step), (step, -step), (-step, step)):
                tried = [logs[0] + one, logs[1] + other, logs[2]]
                found = self._bound(tried)
                if found < best - enough:
                    best, logs, better = found, tried, True
                    break
            if not better:
                step *= SHRINKS
        return min(best, float(everything))

    def _has_all(self) -> bool:
        """Whether there is enough of everything, either with all blocks kept or with none: then no
        prices make the bound less than all calls."""
        first = sum(need.first for need in self._needs)
        decode = sum(self._decoding(need) for need in self._needs)
        if self._apart:
            if decode > self._decode:
                return False
        else:
            first += decode
        again = kept = 0.0
        for need in self._needs:
            for one in need.kept:
                again += one.seconds
                kept += one.blocks * max(0.0, self._kept_seconds(need, one))
        return first + again <= self._prefill or (first <= self._prefill and kept <= self._cache)

    def _decoding(self, need: Need) -> float:
        return need.decode if need.over <= self._last or not self._apart else 0.0

    def _kept_seconds(self, need: Need, one: SharedBlocks) -> float:
        """What is there when a piece begins, costs only from then on."""
        return need.at - max(one.since, self._begins)

    def _bound(self, logs: Sequence[float]) -> float:
        prefill, decode, cache = (exp(one) for one in logs)
        if not self._apart:
            decode = prefill
        total = prefill * self._prefill + decode * self._decode + cache * self._cache
        last, begins = self._last, self._begins
        for need in self._needs:
            left = 1 - prefill * need.first
            if need.over <= last or not self._apart:
                left -= decode * need.decode
            for one in need.kept:
                if left <= 0:
                    break
                # As `_kept_seconds`, without a call of it.
                kept = need.at - (max(begins, one.since))
                keeping = cache * one.blocks * kept
                again = prefill * one.seconds
                if keeping > 0:
                    left -= min(keeping, again)
            if left > 0:
                total += left
        return total
