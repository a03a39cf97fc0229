"""Instances that exist, which may get calls, and what each serves.

Lists per model and role are kept ready for the scheduler and made anew only when
something changes: an instance comes or goes, is ejected or drained, or serves another model.

What takes an instance out, and what brings it back:

    refused a connection, not well, drained   at once      a good look; undrained
    failed too many calls                     at once      a good look, then a good call
    said that it sleeps                       at the look  a look that finds it awake
    did not answer a look in time             at the look  a good look
    answers looks, and works at nothing       at once      a sign of work, or a while; then a good call

The last three are doubts, and do not take the last one of a role (scheduling/eligible.py).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from time import monotonic

from pdgate.protocols.errors import BadRequest, NoInstance, UnknownModel
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.eligible import EligibleSet, admitted, eligible_of
from pdgate.scheduling.endpoint import NO_LENGTHS, Endpoint
from pdgate.scheduling.health.breaker import Breaker, BreakerLimits
from pdgate.scheduling.health.cause import Cause
from pdgate.scheduling.latency.model import Families

RETRY_AFTER_SECONDS = 2


class Endpoints:
    """
    Attributes:
        limits: When failing calls take an instance out, and how it comes back.
        by_id: Those that exist; changed by no other component.
        eligible_sets: By the model that calls name, of those that were asked for since something changed;
            `eligible` makes the others.
        drained: Ids of those that operators want to get no more calls, known or not.
        on_out: Called with the id of an instance taken out by what calls met.
        on_lost: Called with the id of one whose process is gone, and its cache with it.
    """

    def __init__(
        self,
        records: Iterable[Instance] = (),
        limits: BreakerLimits | None = None,
        clock: Callable[[], float] = monotonic,
        draw: Callable[[], float] | None = None,
    ) -> None:
        self.limits = limits or BreakerLimits()
        self.drained: frozenset[str] = frozenset()
        self.on_out: Callable[[str], None] = _nobody_listens
        self.on_lost: Callable[[str], None] = _nobody_listens
        self._clock = clock
        self._draw = draw or Random().random
        self.by_id: dict[str, Endpoint] = {}
        self.eligible_sets: dict[str | None, EligibleSet] = {}
        self._removed: list[Endpoint] = []
        self._families = Families()
        self._only_model: str | None = None
        self._roles_change = False
        for record in records:
            self.put(record)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.by_id.values())

    def get(self, instance_id: str) -> Endpoint | None:
        return self.by_id.get(instance_id)

    @property
    def removed(self) -> Sequence[Endpoint]:
        """Those at which calls run on."""
        self._removed = [endpoint for endpoint in self._removed if endpoint.calls]
        return self._removed

    def put(self, record: Instance) -> Endpoint:
        """Adds an instance, or replaces what its record says; its account goes on."""
        endpoint = self.by_id.get(record.id)
        if endpoint is None:
            # A model that was configured is known before its engine has ever answered.
            known = frozenset((record.model,) if record.model else ())
            endpoint = self.by_id[record.id] = Endpoint(record, models=known)
            endpoint.drained = record.id in self.drained
        elif endpoint.instance == record:
            return endpoint
        elif endpoint.instance.role is not record.role:
            self._roles_change = True
        if endpoint.instance.url != record.url:
            self.on_lost(record.id)
        endpoint.instance = record
        self._join(endpoint)
        self._changed()
        return endpoint

    def remove(self, instance_id: str) -> None:
        endpoint = self.by_id.pop(instance_id, None)
        if endpoint is not None:
            self._families.remove(endpoint.latency)
            if endpoint.shared is not None:
                # Nothing tells of these any more.
                endpoint.shared.take_in(endpoint, endpoint.shared.far, 0, 0, 0, 0)
            if endpoint.calls:
                self._removed.append(endpoint)
            self.on_lost(instance_id)
            self._changed()

    def mark_up(
        self,
        instance_id: str,
        models: Iterable[str],
        lengths: Mapping[str, int] = NO_LENGTHS,
        *,
        strict: bool = False,
    ) -> None:
        """A look found it well.

        `lengths`: model -> tokens of its context, of those of which it says that.
        `strict`: it refuses what is longer, and cuts none of it.
        """
        endpoint = self.by_id.get(instance_id)
        if endpoint is None:
            return
        changed = not endpoint.stuck and endpoint.breaker.seen_well(self._clock(), self.limits)
        served = frozenset(models)
        if endpoint.lengths != lengths or endpoint.strict is not strict:
            endpoint.lengths, endpoint.strict, changed = lengths, strict, True
        if not endpoint.up or endpoint.models != served:
            changed = True
            if endpoint.left:
                endpoint.left, endpoint.returned = False, self._clock()
            if endpoint.asleep:
                # What failed there, and stood still, did so as it fell asleep.
                endpoint.asleep, endpoint.stuck, endpoint.breaker = False, False, Breaker()
            endpoint.up, endpoint.silent, endpoint.models = True, False, served
            self._join(endpoint)
        if changed:
            self._changed()

    def mark_down(self, instance_id: str, why: str = "not well") -> None:
        """Nothing listens there, or it said itself that it is not well."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is None or not (endpoint.up or endpoint.silent or endpoint.asleep):
            return
        endpoint.left, endpoint.up, endpoint.silent, endpoint.asleep = True, False, False, False
        self.on_lost(instance_id)
        self._out(endpoint, why)

    def mark_asleep(self, instance_id: str) -> None:
        """It is well, and says that it takes no calls for now; what it had cached is gone."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is None or endpoint.asleep:
            return
        was_there = endpoint.up or endpoint.silent
        endpoint.up, endpoint.silent, endpoint.asleep = False, False, True
        if was_there:
            endpoint.left = True
            self.on_lost(instance_id)
        # Meant, so it is no ejection.
        self._changed()

    def mark_silent(self, instance_id: str) -> None:
        """It did not answer a look in time: hung, or only busy."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is None or not endpoint.up:
            return
        endpoint.up, endpoint.silent = False, True
        self._out(endpoint, "silent")

    def mark_stuck(self, instance_id: str) -> None:
        """It answers looks, and works at nothing; to `free` it, it must show something else."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is not None and not endpoint.stuck:
            endpoint.stuck = True
            endpoint.breaker.open(self._clock())
            self._out(endpoint, "stuck")

    def free(self, instance_id: str) -> None:
        """A stuck one may be on trial again, after the next good look."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is not None:
            endpoint.stuck = False

    def worked(self, instance_id: str) -> None:
        """A leg there ended well."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is not None and endpoint.breaker.worked():
            endpoint.returned = self._clock()
            self._changed()

    def failed(self, instance_id: str, cause: Cause) -> None:
        """A leg there failed."""
        if cause is Cause.TRANSPORT:
            for behind in self._behind(instance_id):
                self.mark_down(behind, "refused")
                self.on_out(behind)
        elif cause is Cause.ENGINE:
            endpoint = self.by_id.get(instance_id)
            if endpoint is not None and endpoint.breaker.failed(self._clock(), self.limits):
                self._out(endpoint, "failures")
                self.on_out(instance_id)

    def excuse(self, instance_ids: Iterable[str]) -> None:
        """Their latest failures were the fault of a call, which failed everywhere."""
        for instance_id in instance_ids:
            endpoint = self.by_id.get(instance_id)
            if endpoint is not None and endpoint.breaker.excuse():
                self._changed()

    def assign(self, instance_id: str, sides: frozenset[Role] | None) -> None:
        """What it is to serve from the next call on; None for all that its role allows."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is not None and endpoint.sides != sides:
            endpoint.sides = sides
            self._roles_change = True
            self._changed()

    def drain(self, instance_ids: Collection[str]) -> None:
        """These, and only these, get no more calls; those that run there go on."""
        self.drained = frozenset(instance_ids)
        for endpoint in self:
            endpoint.drained = endpoint.instance.id in self.drained
        self._changed()

    def admitted(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those of a careful eligible set that may have this call."""
        now, slow_start_seconds = self._clock(), self.limits.slow_start_seconds
        for endpoint in endpoints:
            since = endpoint.returned
            if since is not None and now - since >= slow_start_seconds:
                endpoint.returned = None
                self._changed()
        return admitted(endpoints, now, slow_start_seconds, self._draw)

    def eligible(self, model: str | None) -> EligibleSet:
        """Raises UnknownModel, BadRequest if a name is needed, NoInstance before any is known."""
        eligible = self.eligible_sets.get(model)
        if eligible is None:
            name = self.meant(model)
            eligible = self.eligible_sets.get(name) or self._make_eligible(name)
            self.eligible_sets[name] = self.eligible_sets[model] = eligible
        return eligible

    def meant(self, model: str | None) -> str:
        """The model's name; the only one's where none is named. Raises BadRequest, NoInstance."""
        return self._model_meant() if model is None else model

    def has(self, role: Role, model: str | None) -> bool:
        """Whether one of the role is known to serve the model, in whatever state it is.

        Raises UnknownModel, BadRequest, NoInstance.
        """
        self.eligible(model)
        name = self.meant(model)
        return any(name in c.models and c.instance.role.serves(role) for c in self)

    def missing_roles(self) -> list[tuple[str, str]]:
        """(what is spoken, role) pairs that were announced and of which none may serve."""
        missing = []
        for speech in dict.fromkeys(c.instance.speaks for c in self):
            of_it = [c for c in self if c.instance.speaks == speech]
            for role in (Role.PREFILL, Role.DECODE, Role.PLAIN):
                announced = [c for c in of_it if c.instance.role.serves(role)]
                if announced and not any(c.may_serve for c in announced):
                    missing.append((speech, role.value))
        return missing

    def unpaired_roles(self) -> list[tuple[str, str]]:
        """(what is spoken, role) pairs that are needed and that no instance announced."""
        unpaired = []
        for speech in dict.fromkeys(c.instance.speaks for c in self):
            roles = {c.instance.role for c in self if c.instance.speaks == speech}
            for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
                if role in roles and not any(r.serves(other) for r in roles):
                    unpaired.append((speech, other.value))
        return unpaired

    def models(self) -> list[str]:
        """Names of all that are known."""
        return sorted({model for c in self for model in c.models})

    def _behind(self, instance_id: str) -> Sequence[str]:
        """It, and the other ranks behind its port: with eight of them, a call would have no attempt left."""
        endpoint = self.by_id.get(instance_id)
        if endpoint is None or endpoint.instance.dp_rank is None:
            return (instance_id,)
        url = endpoint.instance.url
        return [one.instance.id for one in self if one.instance.url == url]

    def _join(self, endpoint: Endpoint) -> None:
        """Those that it is like now."""
        one = endpoint.instance
        self._families.put(endpoint.latency, (endpoint.models, one.role, one.speaks))

    def _out(self, endpoint: Endpoint, why: str) -> None:
        endpoint.ejections[why] += 1
        self._changed()

    def _changed(self) -> None:
        self.eligible_sets.clear()
        self._only_model = None

    def _model_meant(self) -> str:
        if self._only_model is None:
            models = self.models()
            if not models:
                raise _nobody_yet()
            if len(models) > 1:
                raise BadRequest("you must name a model: several are served", param="model")
            self._only_model = models[0]
        return self._only_model

    def _make_eligible(self, model: str) -> EligibleSet:
        serving = [c for c in self if model in c.models]
        if not serving:
            if not any(c.models for c in self):
                raise _nobody_yet()
            raise UnknownModel(f"the model {model!r} does not exist", param="model")
        removed: Sequence[Endpoint] = self.removed if self._removed else ()
        if removed:
            # Who has a new record is the same engine: its calls take its places.
            known = {_at(endpoint) for endpoint in self}
            removed = [c for c in removed if model in c.models and _at(c) not in known]
        return eligible_of(serving, roles_change=self._roles_change, model=model, removed=removed)


def _at(endpoint: Endpoint) -> tuple[str, int | None]:
    """Where its process listens."""
    return endpoint.instance.url, endpoint.instance.dp_rank


def _nobody_listens(instance_id: str) -> None: ...


def _nobody_yet() -> NoInstance:
    return NoInstance(
        "no engine has announced a model yet", retry_after_seconds=RETRY_AFTER_SECONDS
    )
