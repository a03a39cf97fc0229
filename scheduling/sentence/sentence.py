"""A policy that is a sentence: keep these, prefer those, choose so.

    keep        call, candidate -> bool   who comes into question
    prefer      call, candidate -> 0..1   each with its weight, added up
    choose      Best, PowerOfTwo, Softmax
    otherwise   who chooses, among all again, if a keep leaves nobody; else the keep is passed over

Beside its other half, a call may also prefer who is near: on the same host 1, in the same rack 2/3,
in the same zone 1/3, times the weight `near`. Where the other half is chosen next, what its best
choice would be worth there is added (scheduling/partners.py).
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.protocols.place import FAR, Place
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.choice import Weighed
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence.pick import Pick, Score
from pdgate.scheduling.sentence.shortlist import ALL, Shortlist
from pdgate.scheduling.sentence.whereabouts import told_apart_by
from pdgate.scheduling.surroundings import Prefixes

Keep = Callable[[Call, Candidate], bool]
Prefer = Callable[[Call, Candidate], float]


class Sentence(Policy):
    """
    Attributes:
        passed_over: Name of a keep -> how often it left nobody.
    """

    def __init__(
        self,
        *,
        keep: Sequence[Keep] = (),
        prefer: Sequence[tuple[float, Prefer]],
        choose: Pick,
        otherwise: Policy | None = None,
        near: float = 0.0,
        prefixes: Prefixes | None = None,
    ) -> None:
        """
        Args:
            near: How much it weighs to be near the peer.
            prefixes: What its words ask of caches; among very many, those who have most of a
                prompt are always looked at.
        """
        self.passed_over: Counter[str] = Counter()
        self.needs_prefixes = prefixes is not None
        self._keep = tuple(keep)
        self._prefer = tuple(prefer)
        self._score: Score = _score(self._prefer)
        self._pick = choose
        self._otherwise = otherwise
        self._near = near
        self._shortlist = Shortlist(prefixes, choose.random)
        # Where somebody can be nearer than others, of those who could be chosen last.
        self._seen: Sequence[Candidate] = ()
        self._named: Sequence[Candidate] = ()
        self._names: Collection[str] = ()

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        return self._chosen(call, candidates, self._score)

    def choose_beside(
        self, call: Call, candidates: Sequence[Candidate], peer: Instance
    ) -> Candidate:
        if not self._near:
            return self._chosen(call, candidates, self._score)
        score, place, names = self._score, peer.place, self._names
        if candidates is not self._named:
            names = self._names_of(candidates, place)
        if place.host in names or place.rack in names or place.zone in names:
            score = self._score_beside(peer)
        return self._chosen(call, candidates, score, peer)

    def choose_ahead(
        self, call: Call, candidates: Sequence[Candidate], partners: Partners
    ) -> Candidate:
        alone, worth = self._score, partners.worth

        def score(call: Call, candidate: Candidate) -> float:
            return alone(call, candidate) + worth(candidate.instance)

        return self._chosen(call, candidates, score)

    def partners(self, call: Call, candidates: Sequence[Candidate]) -> Partners | None:
        if not self._near:
            return None
        kept = self._shortlist.of(call, candidates)
        for keep in self._keep:
            kept = [candidate for candidate in kept if keep(call, candidate)] or kept
        score = self._score
        return Partners(((candidate, score(call, candidate)) for candidate in kept), self._near)

    def explain(
        self, call: Call, candidates: Sequence[Candidate], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        """Each word's value times its weight. Of very many, some were looked at (shortlist.py)."""
        beside = self._score_beside(peer) if peer and self._near else self._score
        said = []
        for candidate in candidates:
            score = beside(call, candidate)
            failed = [keep.__name__ for keep in self._keep if not keep(call, candidate)]
            words = [
                f"{getattr(one, '__name__', one)} {one(call, candidate):.3f}"
                + (f" x {weight:g}" * (weight != 1))
                for weight, one in self._prefer
            ]
            if peer is not None and self._near:
                nearness = 1 - peer.place.distance(candidate.instance.place) / FAR
                words.append(f"near {nearness:.3f} x {self._near:g}")
            why = " + ".join(words)
            if failed:
                why = f"not kept, unless nobody is: {', '.join(failed)} says no; {why}"
            said.append(Weighed(candidate.instance.id, score, why))
        return said

    def _chosen(
        self,
        call: Call,
        candidates: Sequence[Candidate],
        score: Score,
        peer: Instance | None = None,
    ) -> Candidate:
        looked_at = candidates
        if len(candidates) > ALL:
            looked_at = self._shortlist.of(call, candidates, peer)
        kept = looked_at
        for keep in self._keep:
            some = [candidate for candidate in kept if keep(call, candidate)]
            if some:
                kept = some
                continue
            self.passed_over[keep.__name__] += 1
            if self._otherwise is not None:
                return self._otherwise.choose(call, looked_at)
        return self._pick.among(call, kept, score)

    def _names_of(self, candidates: Sequence[Candidate], place: Place) -> Collection[str]:
        """By which they are told apart. A list that is new may be made for this call only, and is
        not worth to be looked through: it is said to be told apart by this place."""
        if candidates is not self._seen:
            self._seen = candidates
            return (place.host,)
        self._named, self._names = candidates, told_apart_by(candidates)
        return self._names

    def _score_beside(self, peer: Instance) -> Score:
        alone, near = self._score, self._near
        distance = peer.place.distance

        def score(call: Call, candidate: Candidate) -> float:
            nearness = 1 - distance(candidate.instance.place) / FAR
            return alone(call, candidate) + near * nearness

        return score


def _score(prefer: Sequence[tuple[float, Prefer]]) -> Score:
    """All of it added up; of a single word that word itself."""
    if len(prefer) == 1 and prefer[0][0] == 1:
        return prefer[0][1]

    def score(call: Call, candidate: Candidate) -> float:
        together = 0.0
        for weight, one in prefer:
            together += weight * one(call, candidate)
        return together

    return score
