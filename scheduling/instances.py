"""The instances that exist, which are up, and what each serves.

Lists per model and role are kept ready for the scheduler and made anew only when
something changes: an instance comes or goes, is ejected, or serves another model.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pdgate.protocols.errors import BadRequest, NoInstance, UnknownModel
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.candidate import Candidate

RETRY_AFTER_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Lineup:
    """Who can serve one model now.

    Attributes:
        up: Role -> candidates that are up; if there are pairs, then for prefill and decode
            only those that are in one.
        disaggregated: Whether there are pairs: two instances of one protocol.
        mixed: Whether there are pairs of several protocols, so that one must be matched.
    """

    up: dict[Role, Sequence[Candidate]] = field(default_factory=dict)
    disaggregated: bool = False
    mixed: bool = False


class Instances:
    def __init__(self, records: Iterable[Instance] = ()) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._lineups: dict[str, Lineup] = {}
        self._only_model: str | None = None
        for record in records:
            self.put(record)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates.values())

    def get(self, instance_id: str) -> Candidate | None:
        return self._candidates.get(instance_id)

    def put(self, record: Instance) -> Candidate:
        """Adds an instance, or replaces what its record says; its account goes on."""
        candidate = self._candidates.get(record.id)
        if candidate is None:
            # A model that was configured is known before its engine has ever answered.
            known = frozenset((record.model,) if record.model else ())
            candidate = self._candidates[record.id] = Candidate(record, models=known)
        elif candidate.instance == record:
            return candidate
        candidate.instance = record
        self._changed()
        return candidate

    def remove(self, instance_id: str) -> None:
        if self._candidates.pop(instance_id, None) is not None:
            self._changed()

    def mark_up(self, instance_id: str, models: Iterable[str]) -> None:
        candidate = self._candidates.get(instance_id)
        served = frozenset(models)
        if candidate is None or (candidate.up and candidate.models == served):
            return
        candidate.up, candidate.models = True, served
        self._changed()

    def mark_down(self, instance_id: str) -> None:
        candidate = self._candidates.get(instance_id)
        if candidate is None or not candidate.up:
            return
        candidate.up = False
        self._changed()

    def lineup(self, model: str | None) -> Lineup:
        """Raises UnknownModel, BadRequest if a name is needed, NoInstance before any is known."""
        if model is None:
            model = self._model_meant()
        lineup = self._lineups.get(model)
        if lineup is None:
            lineup = self._lineups[model] = self._make_lineup(model)
        return lineup

    def missing_roles(self) -> list[tuple[str, str]]:
        """(protocol, role) pairs that were announced and of which nobody is up."""
        missing = []
        protocols = dict.fromkeys(c.instance.protocol for c in self)
        for protocol in protocols:
            of_it = [c for c in self if c.instance.protocol == protocol]
            for role in (Role.PREFILL, Role.DECODE, Role.PLAIN):
                announced = [c for c in of_it if c.instance.role.serves(role)]
                if announced and not any(c.up for c in announced):
                    missing.append((protocol, role.value))
        return missing

    def unpaired_roles(self) -> list[tuple[str, str]]:
        """(protocol, role) pairs that a protocol needs and nobody announced."""
        unpaired = []
        for protocol in dict.fromkeys(c.instance.protocol for c in self):
            roles = {c.instance.role for c in self if c.instance.protocol == protocol}
            for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
                if role in roles and not any(r.serves(other) for r in roles):
                    unpaired.append((protocol, other.value))
        return unpaired

    def _changed(self) -> None:
        self._lineups.clear()
        self._only_model = None

    def _model_meant(self) -> str:
        if self._only_model is None:
            models = sorted({model for c in self for model in c.models})
            if not models:
                raise _nobody_yet()
            if len(models) > 1:
                raise BadRequest("you must name a model: several are served", param="model")
            self._only_model = models[0]
        return self._only_model

    def _make_lineup(self, model: str) -> Lineup:
        serving = [c for c in self if model in c.models]
        if not serving:
            if not any(c.models for c in self):
                raise _nobody_yet()
            raise UnknownModel(f"the model {model!r} does not exist", param="model")
        up = [c for c in serving if c.up]
        plain = [c for c in up if c.instance.role is Role.PLAIN]
        prefill = [c for c in up if c.instance.role.serves(Role.PREFILL)]
        decode = [c for c in up if c.instance.role.serves(Role.DECODE)]
        paired = _in_pairs(prefill, decode), _in_pairs(decode, prefill)
        disaggregated = bool(paired[0])
        if disaggregated:
            prefill, decode = paired
        return Lineup(
            {Role.PREFILL: prefill, Role.DECODE: decode, Role.PLAIN: plain},
            disaggregated,
            mixed=len({c.instance.protocol for c in prefill}) > 1,
        )


def _in_pairs(some: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Those for whom there is one of the others; nobody pairs with itself."""
    of_protocol = Counter(c.instance.protocol for c in others)

    def itself(candidate: Candidate) -> int:
        return 1 if candidate.instance.role is Role.BOTH else 0

    return [c for c in some if of_protocol[c.instance.protocol] > itself(c)]


def _nobody_yet() -> NoInstance:
    return NoInstance(
        "no engine has announced a model yet", retry_after_seconds=RETRY_AFTER_SECONDS
    )
