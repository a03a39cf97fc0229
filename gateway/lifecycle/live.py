"""What of a gateway can be changed while it runs, and how: from the next call on, in all cases.

Calls that run end as they began: with their engines, timeouts and policies.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pdgate.forwarders.execution import Execution
from pdgate.gateway import policies
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.rules import (
    breaker_limits,
    retrying_of,
    timeouts_of,
    timeouts_of_models,
    total_time_of,
)
from pdgate.gateway.config.sections import Disaggregation
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.debug import no_headers, path_headers
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.pings import Pings
from pdgate.gateway.lifecycle.reload import Change, Reload
from pdgate.gateway.metrics.books import Books
from pdgate.gateway.policies import Policies
from pdgate.gateway.probe import Prober
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.ways import own_fields, ways
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.scheduler import Scheduler

FLEET = (
    "instances", "pdd_protocol", "scheduling_mode", "mooncake_generation", "neuron_generation",
    "kv_lease_seconds",
)  # fmt: skip

TIMES = (
    "timeouts.connect_seconds", "timeouts.prefill_seconds", "timeouts.first_byte_seconds",
    "timeouts.kv_wait_seconds", "timeouts.idle_seconds", "timeouts.retry_seconds", "timeouts.ping_seconds",
    "timeouts.total_seconds",
    "max_attempts", "on_prefill_failure", "resume",
)  # fmt: skip
HEALTH = (
    "health.interval_seconds", "health.timeout_seconds", "health.retry_seconds",
    "health.max_failures", "health.slow_start_seconds",
)  # fmt: skip

DRAIN = ("drain",)
TARGETS = ("targets",)
MODELS = ("models",)
RULE = ("disaggregation",)
INTAKE = ("max_body_bytes", "trust_client_kv_params", "passthrough")
KEYS = ("api_keys", "api_keys_file")
INSIGHT = ("debug_headers", "call_log", "log_prompts", "log_level")

CHANGEABLE = frozenset(
    (
        *FLEET,
        *TIMES,
        *HEALTH,
        *policies.KEYS.values(),
        *TARGETS,
        *MODELS,
        *DRAIN,
        *RULE,
        *INTAKE,
        *KEYS,
        *INSIGHT,
    )
)
"""All keys, and sections, that this can change."""


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """The parts that can be changed; `register` says which keys change them."""

    front: Front
    instances: Instances
    scheduler: Scheduler
    policies: Policies
    execution: Execution
    upstream: HttpUpstream
    prober: Prober
    books: Books
    dial: Dial[Disaggregation]
    feed: Feed | None

    def register(self, reload: Reload) -> None:
        reload.part(FLEET, lambda wanted: self._fleet(reload.settings, wanted))
        for role, key in policies.KEYS.items():
            reload.part((key,), partial(self._policy, role, key))
        reload.part(MODELS, lambda s: self._models(reload.settings, s))
        reload.part(TARGETS, self._targets)
        reload.part(TIMES, self._times)
        reload.part(HEALTH, self._health)
        reload.part(DRAIN, self._drain)
        reload.part(RULE, lambda s: lambda: self.dial.configure(s.disaggregation))
        reload.part(INTAKE, self._intake)
        reload.part(KEYS, self._keys)
        reload.always(self._keys)
        reload.part(INSIGHT, self._insight)

    def _fleet(self, before: Settings, wanted: Settings) -> Change:
        old = {instance.id: instance for instance in before.fleet}
        new = {instance.id: instance for instance in wanted.fleet}
        way_of, adopt, own = ways(wanted), adopter(wanted), own_fields(wanted)

        def change() -> None:
            self.execution.way_of = way_of
            service = self.front.service
            service.intake = replace(service.intake, own_fields=own)
            # Those that go by another name now are as well as they were.
            known = {_place(c.instance): c for c in self.instances if c.instance.id in old}
            differing = [one for one in new.values() if old.get(one.id) != one]
            for instance_id in [*(old.keys() - new.keys()), *(one.id for one in differing)]:
                self.instances.remove(instance_id)
                self.prober.forget(instance_id)
            # Between the two: what is configured now is not announced, and the other way round.
            if self.feed is not None:
                self.feed.adopt_by(adopt)
            for one in differing:
                self.instances.put(one)
                before_ = known.get(_place(one))
                if before_ is not None and before_.up and before_.instance.model == one.model:
                    self.instances.mark_up(one.id, before_.models)
                self.prober.add(one)

        return change

    def _policy(self, role: Role, key: str, wanted: Settings) -> Change:
        try:
            chosen = self.policies.of(role, wanted)
        except (LookupError, TypeError) as error:
            raise ConfigError(f"{key!r}: {error.args[0]}") from None
        return lambda: self.scheduler.use(role, chosen)

    def _models(self, before: Settings, wanted: Settings) -> Change:
        changes = [self._policies_of_models(wanted), self._times(wanted), self._intake(wanted)]
        if _protocols(before) != _protocols(wanted):
            changes.append(self._fleet(before, wanted))
        return _all(changes)

    def _policies_of_models(self, wanted: Settings) -> Change:
        try:
            chosen = self.policies.of_models(wanted)
        except (LookupError, TypeError) as error:
            raise ConfigError(f"'models': {error.args[0]}") from None
        return lambda: self.scheduler.use_of_models(chosen)

    def _targets(self, wanted: Settings) -> Change:
        changes = [self._policy(role, key, wanted) for role, key in policies.KEYS.items()]
        return _all([*changes, self._policies_of_models(wanted)])

    def _times(self, wanted: Settings) -> Change:
        def change() -> None:
            self.upstream.use(timeouts_of(wanted.timeouts), timeouts_of_models(wanted))
            self.front.service.total = total_time_of(wanted)
            ping_seconds = wanted.timeouts.ping_seconds
            self.front.pings = Pings(ping_seconds) if ping_seconds else None
            self.execution.retrying = retrying_of(wanted)
            self.execution.max_resumes = wanted.max_attempts if wanted.resume else 0

        return change

    def _health(self, wanted: Settings) -> Change:
        def change() -> None:
            self.instances.limits = breaker_limits(wanted.health)
            self.prober.interval_seconds = wanted.health.interval_seconds
            self.prober.timeout_seconds = wanted.health.timeout_seconds
            self.prober.retry_seconds = wanted.health.retry_seconds

        return change

    def _drain(self, wanted: Settings) -> Change:
        def change() -> None:
            drain = self.front.service.drain
            drain.grace_seconds = wanted.drain.grace_seconds
            drain.notice_seconds = wanted.drain.notice_seconds

        return change

    def _intake(self, wanted: Settings) -> Change:
        def change() -> None:
            service = self.front.service
            service.intake = replace(
                service.intake,
                max_body_bytes=wanted.max_body_bytes,
                trust_client_kv_params=wanted.trust_client_kv_params,
                aliases=wanted.aliases,
            )
            self.front.passthrough = wanted.passthrough

        return change

    def _keys(self, wanted: Settings) -> Change:
        keys = api_keys(wanted.api_keys, wanted.api_keys_file, wanted.aliases)
        door = self.front.service.door
        if (door is not None) != bool(keys):
            raise ConfigError(
                "'api_keys': to begin or to end asking for keys needs a restart, "
                "so nothing was changed"
            )

        def change() -> None:
            if door is not None:
                door.admit(keys)

        return change

    def _insight(self, wanted: Settings) -> Change:
        def change() -> None:
            self.front.debug = path_headers if wanted.debug_headers else no_headers
            self.books.log.wanted = wanted.call_log
            self.books.log.prompts = wanted.log_prompts
            logging.getLogger().setLevel(wanted.log_level.upper())

        return change


def _place(instance: Instance) -> tuple[str, str, int | None]:
    return instance.role, instance.url, instance.dp_rank


def _protocols(settings: Settings) -> dict[str, str]:
    """Of models that have one of their own."""
    return {model.name: model.pdd_protocol for model in settings.models if model.pdd_protocol}


def _all(changes: Sequence[Change]) -> Change:
    def change() -> None:
        for one in changes:
            one()

    return change
