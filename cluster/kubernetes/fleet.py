"""All EndpointSlices together, and the events that a change of one makes. Pure.

    slices of a Service, 100 endpoints in each, two families, moved about as pods come and go
        |  one engine at an address, in whichever slices
        |  one address of a pod
    members  --what was told before-->  Joined, Left, Refused

An endpoint may be in several slices at once, as they are written and arrive one by one: it is
there as long as any of them has it, and ready if any of them says so. Else what was written
last counts, also of its role. A pod of a dual-stack Service is in slices of both families; it is
one engine, at its IPv4 address if it has one.

Source: "Duplicate endpoints" in Kubernetes' page on EndpointSlices; kube-proxy's
EndpointSliceCache does the same.
"""

from collections.abc import Iterable, Mapping, Sequence

from pdgate.cluster.directory import (
    MOST_ENTRIES,
    TOO_MANY,
    Event,
    Joined,
    Left,
    Listed,
    Refused,
)
from pdgate.cluster.kubernetes.slices import Slice, SliceEndpoint
from pdgate.cluster.member import Member

PREFERRED_FAMILY = "IPv4"
BULK = 16
"""Events at once that become one list: each event has the reader look at all members."""


MOST_ENDPOINTS = 2 * MOST_ENTRIES
"""Of all slices: an engine may be in two, and at two addresses."""


class SliceFleet:
    """Slices beyond MOST_ENDPOINTS are refused by name, whole."""

    def __init__(self) -> None:
        # By name, what was written last at the end.
        self._slices: dict[str, Slice] = {}
        self._endpoints = 0
        self._members: Mapping[str, Member] = {}
        self._refused: Mapping[str, str] = {}

    def list(self, slices: Iterable[Slice]) -> Listed:
        """These and no others, in the order of their writing."""
        self._slices = {}
        self._endpoints = 0
        for each in slices:
            self._take(each)
        self._members, self._refused = _together(self._slices.values())
        return Listed(self._members, self._refused)

    def put(self, written: Slice) -> Sequence[Event]:
        self._take(written)
        return self._changes()

    def drop(self, name: str) -> Sequence[Event]:
        self._leave(name)
        return self._changes()

    def _take(self, written: Slice) -> None:
        """As the one that was written last."""
        self._leave(written.name)
        if self._endpoints + _size(written) > MOST_ENDPOINTS:
            written = Slice(written.name, refused={written.name: TOO_MANY})
        self._endpoints += _size(written)
        self._slices[written.name] = written

    def _leave(self, name: str) -> None:
        gone = self._slices.pop(name, None)
        if gone is not None:
            self._endpoints -= _size(gone)

    def _changes(self) -> Sequence[Event]:
        """Joined before Left, so that no engine is missing in between."""
        members, refused = self._members, self._refused
        self._members, self._refused = _together(self._slices.values())
        events: list[Event] = [
            Joined(key, member)
            for key, member in self._members.items()
            if members.get(key) != member
        ]
        events += [
            Refused(key, why) for key, why in self._refused.items() if refused.get(key) != why
        ]
        events += [Left(key) for key in members if key not in self._members]
        events += [Left(key) for key in refused if key not in self._refused]
        return events if len(events) < BULK else [Listed(self._members, self._refused)]


def _size(slice_: Slice) -> int:
    return max(1, len(slice_.endpoints) + len(slice_.refused))


def _together(slices: Iterable[Slice]) -> tuple[dict[str, Member], dict[str, str]]:
    """Members by key, and what is refused."""
    at: dict[tuple[str, int], SliceEndpoint] = {}
    refused: dict[str, str] = {}
    for each in slices:
        refused |= each.refused
        for endpoint in each.endpoints:
            place = (endpoint.member.host, endpoint.member.port)
            before = at.pop(place, endpoint)
            at[place] = before if _is_better(before, endpoint) else endpoint
    members = (endpoint.member for endpoint in _one_of_each_pod(at.values()))
    return {member.key: member for member in members}, refused


def _is_better(before: SliceEndpoint, after: SliceEndpoint) -> bool:
    return before.member.takes_calls and not after.member.takes_calls


def _one_of_each_pod(endpoints: Iterable[SliceEndpoint]) -> list[SliceEndpoint]:
    """A pod may have several engines, each at a port of its own."""
    found = list(endpoints)
    preferred = {(each.pod, each.member.port) for each in found if each.family == PREFERRED_FAMILY}
    return [
        each
        for each in found
        if not each.pod
        or each.family == PREFERRED_FAMILY
        or (each.pod, each.member.port) not in preferred
    ]
