"""Pipeline, a policy as steps: filters, then scorers, then a picker.

    filters     call, endpoint -> bool   which come into question
    scorers     call, endpoint -> 0..1   each with its weight, added up
    picker      Best, PowerOfTwo, Softmax
    otherwise   the policy that chooses, among all again, if a filter leaves none; else the filter
                is passed over

Beside its other half, a call may also prefer what is near: on the same host 1, in the same rack 2/3,
in the same zone 1/3, times the weight `near`. Where the other half is chosen next, what its best
choice would be worth there is added (scheduling/partners.py).
"""

from collections import Counter
from collections.abc import Collection, Sequence

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.protocols.place import FAR, Place
from pdgate.scheduling.decision_trace import Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.pipeline.scorers import Filter, Picker, Score, Scorer
from pdgate.scheduling.pipeline.shortlist import ALL, Shortlist, told_apart_by
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import Prefixes


class Pipeline(Policy):
    """Filters, scorers and a picker, as one policy.

    Attributes:
        passed_over: Name of a filter -> how often it left none.
    """

    def __init__(
        self,
        *,
        filters: Sequence[Filter] = (),
        scorers: Sequence[tuple[float, Scorer]],
        picker: Picker,
        otherwise: Policy | None = None,
        near: float = 0.0,
        prefixes: Prefixes | None = None,
    ) -> None:
        """
        Args:
            near: How much it weighs to be near the peer.
            prefixes: What the scorers ask of caches; among very many, those that have most of a
                prompt are always looked at.
        """
        self.passed_over: Counter[str] = Counter()
        self.needs_prefixes = prefixes is not None
        self._filters = tuple(filters)
        self._scorers = tuple(scorers)
        self._score: Score = _together(self._scorers)
        self._picker = picker
        self._otherwise = otherwise
        self._near = near
        self._shortlist = Shortlist(prefixes, picker.random)
        # Where some can be nearer than others, of those that could be chosen last.
        self._seen: Sequence[Endpoint] = ()
        self._named: Sequence[Endpoint] = ()
        self._names: Collection[str] = ()

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        return self._chosen(call, endpoints, self._score)

    def choose_beside(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance) -> Endpoint:
        if not self._near:
            return self._chosen(call, endpoints, self._score)
        score, place, names = self._score, peer.place, self._names
        if endpoints is not self._named:
            names = self._names_of(endpoints, place)
        if place.host in names or place.rack in names or place.zone in names:
            score = self._score_beside(peer)
        return self._chosen(call, endpoints, score, peer)

    def choose_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Endpoint:
        alone, worth = self._score, partners.worth

        def score(call: Call, endpoint: Endpoint) -> float:
            return alone(call, endpoint) + worth(endpoint.instance)

        return self._chosen(call, endpoints, score)

    def partners(self, call: Call, endpoints: Sequence[Endpoint]) -> Partners | None:
        if not self._near:
            return None
        kept = self._shortlist.of(call, endpoints)
        for keeps in self._filters:
            kept = [endpoint for endpoint in kept if keeps(call, endpoint)] or kept
        score = self._score
        return Partners(((endpoint, score(call, endpoint)) for endpoint in kept), self._near)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        """Each scorer's value times its weight. Of very many, some were looked at (shortlist.py)."""
        beside = self._score_beside(peer) if peer and self._near else self._score
        said = []
        for endpoint in endpoints:
            score = beside(call, endpoint)
            failed = [_name(keeps) for keeps in self._filters if not keeps(call, endpoint)]
            values = {_name(keeps): float(_name(keeps) not in failed) for keeps in self._filters}
            parts = []
            for weight, one in self._scorers:
                its = values[_name(one)] = one(call, endpoint)
                parts.append(f"{_name(one)} {its:.3f}" + (f" x {weight:g}" * (weight != 1)))
            if peer is not None and self._near:
                nearness = 1 - peer.place.distance(endpoint.instance.place) / FAR
                parts.append(f"near {nearness:.3f} x {self._near:g}")
                values["near"] = nearness
            why = " + ".join(parts)
            if failed:
                why = f"not kept, unless nobody is: {', '.join(failed)} says no; {why}"
            said.append(Weighed(endpoint.instance.id, score, why, values))
        return said

    def explain_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Sequence[Weighed]:
        return partners.told(self.explain(call, endpoints), endpoints, 1.0)

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        """A filter that keeps none is passed over; one that has another policy choose then, says nothing."""
        if self._otherwise is not None:
            kept = [e for e in endpoints if all(keeps(call, e) for keeps in self._filters)]
            if not kept:
                return ()
        return (*(Step(_name(keeps), most=True) for keeps in self._filters), *self._picker.rule())

    def _chosen(
        self,
        call: Call,
        endpoints: Sequence[Endpoint],
        score: Score,
        peer: Instance | None = None,
    ) -> Endpoint:
        looked_at = endpoints
        if len(endpoints) > ALL:
            looked_at = self._shortlist.of(call, endpoints, peer)
        kept = looked_at
        for keeps in self._filters:
            some = [endpoint for endpoint in kept if keeps(call, endpoint)]
            if some:
                kept = some
                continue
            self.passed_over[_name(keeps)] += 1
            if self._otherwise is not None:
                return self._otherwise.choose(call, looked_at)
        return self._picker.among(call, kept, score)

    def _names_of(self, endpoints: Sequence[Endpoint], place: Place) -> Collection[str]:
        """By which they are distinguished. A list that is new may be made for this call only, and
        is
        not worth to be looked through: it is said to be distinguished by this place."""
        if endpoints is not self._seen:
            self._seen = endpoints
            return (place.host,)
        self._named, self._names = endpoints, told_apart_by(endpoints)
        return self._names

    def _score_beside(self, peer: Instance) -> Score:
        alone, near = self._score, self._near
        distance = peer.place.distance

        def score(call: Call, endpoint: Endpoint) -> float:
            nearness = 1 - distance(endpoint.instance.place) / FAR
            return alone(call, endpoint) + near * nearness

        return score


def _together(scorers: Sequence[tuple[float, Scorer]]) -> Score:
    """All of it added up; of a single scorer that scorer itself."""
    if len(scorers) == 1 and scorers[0][0] == 1:
        return scorers[0][1]

    def score(call: Call, endpoint: Endpoint) -> float:
        together = 0.0
        for weight, one in scorers:
            together += weight * one(call, endpoint)
        return together

    return score


def _name(of: object) -> str:
    """For operators; what is called, but is no function, may have none."""
    return str(getattr(of, "__name__", of))
