"""Shortlist of very many engines: those with most of the prompt, those near, and some drawn.

The best of DRAWN is among the best fiftieth of all, and looking at more would cost more than it
gives: loads are not known that well, and several gateways would run to the same engine. What
is rare and worth a lot, a cached prompt or a short way for KV, is not left to the draw.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.protocols.place import Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy_context import Prefixes

ALL: Final = 64
"""So many are all looked at."""

DRAWN: Final = 48
MATCHED: Final = 16
NEAR: Final = 16


class Shortlist:
    def __init__(self, prefixes: Prefixes | None, random: Random) -> None:
        self._prefixes = prefixes
        self._random = random
        self._of: Sequence[Endpoint] = ()
        self._by_id: dict[str, Endpoint] = {}
        self._near_of: Sequence[Endpoint] = ()
        self._by_host: dict[str, list[Endpoint]] = {}
        self._by_rack: dict[tuple[str, str], list[Endpoint]] = {}

    def of(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Endpoint]:
        """`peer`: to be near to."""
        if len(endpoints) <= ALL:
            return endpoints
        # Neighbours in the list are as good as any: where it begins is drawn anew each time.
        first = self._random.randrange(len(endpoints))
        drawn = [*endpoints[first : first + DRAWN]]
        drawn += endpoints[: DRAWN - len(drawn)]
        if peer is not None:
            near = self._near(endpoints, peer.place)
            if near:
                drawn = list(dict.fromkeys((*near, *drawn)))
        if self._prefixes is None:
            return drawn
        found = self._matched(self._prefixes.matched(call))
        if not found:
            return drawn
        by_id = self._known(endpoints)
        return [*dict.fromkeys((*(by_id[one] for one in found if one in by_id), *drawn))]

    def _matched(self, tokens: Mapping[str, int]) -> Sequence[str]:
        """Those that have most; and those with half of that, if they are no more than MATCHED."""
        most = max(tokens.values(), default=0)
        found = [one for one, its in tokens.items() if its * 2 >= most]
        if len(found) > MATCHED:
            found = [one for one in found if tokens[one] == most]
        if len(found) > MATCHED:
            # Some hundred have the same beginning: any of them will do.
            found = self._random.sample(found, MATCHED)
        return found

    def _near(self, endpoints: Sequence[Endpoint], place: Place) -> Sequence[Endpoint]:
        """On its host; if none is, in its rack."""
        if self._near_of is not endpoints:
            self._near_of = endpoints
            self._by_host, self._by_rack = {}, {}
            for one in endpoints:
                its = one.instance.place
                if its.host:
                    self._by_host.setdefault(its.host, []).append(one)
                if its.rack:
                    self._by_rack.setdefault((its.zone, its.rack), []).append(one)
        rack = place.zone, place.rack
        near: Sequence[Endpoint] = self._by_host.get(place.host) or self._by_rack.get(rack) or ()
        return near if len(near) <= NEAR else self._random.sample(near, NEAR)

    def _known(self, endpoints: Sequence[Endpoint]) -> dict[str, Endpoint]:
        """Eligible sets stay the same objects until something changes (scheduling/endpoints.py)."""
        if self._of is not endpoints:
            self._of = endpoints
            self._by_id = {c.instance.id: c for c in endpoints}
        return self._by_id


def told_apart_by(endpoints: Sequence[Endpoint]) -> frozenset[str]:
    """Return the hosts, racks and zones by which engines can be nearer to a place than each other.

    To a place that is in none of these all of them are as near. Mostly there are none, and then no
    engine need be asked how near it is: they run on one host, or each on one of its own.
    """
    places = [endpoint.instance.place for endpoint in endpoints]
    hosts = {place.host for place in places}
    racks = {place.rack for place in places}
    zones = {place.zone for place in places}
    found: set[str] = set()
    if len(hosts) > 1:
        found |= hosts
    if len(zones) > 1:
        found |= zones
    # Racks of two zones may have the same name.
    if len(racks) > 1 or len(zones) > 1:
        found |= racks
    # What is unsaid is near to nothing.
    return frozenset(found - {""})
