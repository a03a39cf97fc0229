"""By what engines can be nearer to a place than each other; mostly by nothing, and then nobody need
be asked how near it is: they run on one host, or each on one of its own."""

from collections.abc import Sequence

from pdgate.scheduling.candidate import Candidate


def told_apart_by(candidates: Sequence[Candidate]) -> frozenset[str]:
    """Hosts, racks and zones. To a place that is in none of these all of them are as near."""
    places = [candidate.instance.place for candidate in candidates]
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
    # What is unsaid is nobody's neighbour.
    return frozenset(found - {""})
