"""Session affinity: an engine for a session, whose cache knows its past; unless that is overloaded.

A session is what the client calls one: the header x-session-id, else prompt_cache_key, else
safety_identifier, else user, which that replaces; else the beginning of the prompt, which later turns share. Each session ranks all engines by
rendezvous hashing, so every gateway ranks them alike without asking another, and when an engine
comes or goes, only its own sessions move. The first in the ranking is taken that has no more than
a fair share of the load and a quarter, and one call like this: a hot session cannot overload it.
Calls without any of these, short ones, go where least is in flight.

Source of the fields: OpenAI API reference, "Create chat completion", which has `user` as deprecated.
Source of the bound: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads".
"""

from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from pdgate.protocols.call import Call, encode
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline.scorers import TOKENS_PER_CALL, in_flight
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.prefix.index import blocks_of

HEADER: Final = b"x-session-id"
FIELDS: Final = ("prompt_cache_key", "safety_identifier", "user")

FAIR: Final = 1.25
"""Times the mean load, this call's included."""

_MIX: Final = 0x9E3779B97F4A7C15
_BITS: Final = 2**64 - 1
_GONE: Final = 1024
"""Engines that may be remembered for nothing."""


class StickySession(Policy):
    def __init__(self) -> None:
        self._seeds: dict[str, int] = {}

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        session = session_of(call)
        if session is None:
            return min(endpoints, key=in_flight)
        loads = list(map(in_flight, endpoints))
        most = _most(call, loads)
        seeds = self._seeds_of(endpoints)
        best, rank = endpoints[0], -1
        for endpoint, load in zip(endpoints, loads, strict=True):
            if load <= most:
                its = _rank(session, seeds[endpoint.instance.id])
                if its > rank:
                    best, rank = endpoint, its
        return best

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        session = session_of(call)
        loads = list(map(in_flight, endpoints))
        if session is None:
            return [
                Weighed(
                    one.instance.id, -load, f"no session; {load} tokens in flight", {"place": n}
                )
                for n, (one, load) in enumerate(zip(endpoints, loads, strict=True))
            ]
        most, seeds = _most(call, loads), self._seeds_of(endpoints)
        said = []
        for one, load in zip(endpoints, loads, strict=True):
            rank = _rank(session, seeds[one.instance.id]) / 2**64
            fair = "" if load <= most else f"too many, passed over: {most:.0f} are fair; "
            why = f"{fair}{load} tokens in flight; the score is its rank for the session"
            said.append(Weighed(one.instance.id, rank, why, {"in_flight_tokens": load}))
        return said

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        if session_of(call) is None:
            return (*HIGHEST_SCORE, Step("place"))
        most = _most(call, [in_flight(one) for one in endpoints])
        return (Step("in_flight_tokens", at_most=most), *HIGHEST_SCORE)

    def _seeds_of(self, endpoints: Sequence[Endpoint]) -> dict[str, int]:
        seeds = self._seeds
        if len(seeds) > len(endpoints) + _GONE:
            seeds.clear()
        for endpoint in endpoints:
            if endpoint.instance.id not in seeds:
                seeds[endpoint.instance.id] = xxh3_64_intdigest(endpoint.instance.id.encode())
        return seeds


def _most(call: Call, loads: Sequence[int]) -> float:
    """The engine that has least has no more than this, so there is always one."""
    mine = call.prompt_tokens + TOKENS_PER_CALL
    return FAIR * (sum(loads) + mine) / len(loads) + mine


def _rank(session: int, seed: int) -> int:
    return (session ^ seed) * _MIX & _BITS


def session_of(call: Call) -> int | None:
    """A number that all calls of its session have; None for a short call that names none."""
    for name, value in call.headers:
        if name == HEADER:
            return xxh3_64_intdigest(value)
    for field in FIELDS:
        named = call.value(field)
        if named is not None:
            return xxh3_64_intdigest(encode(named))
    blocks = blocks_of(call)
    return blocks[0] if blocks else None
