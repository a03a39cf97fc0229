"""Live changes: what of a gateway can be reconfigured while it runs, each from the next call on.

Calls that run end as they began: with their engines, timeouts and policies.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdgate.gateway import policies
from pdgate.gateway.component import Component, GatewayCore
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.rules import (
    retry_policy_of,
    timeouts_of,
    timeouts_of_models,
    total_time_of,
)
from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.debug import path_headers
from pdgate.gateway.discovery.adopt import adopter
from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.pings import Pings
from pdgate.gateway.lifecycle.reload import Change
from pdgate.gateway.ways import own_fields, ways
from pdgate.gateway.wiring.parts import encode_stage_of, limits_of, shares_of, steering_of
from pdgate.protocols.instance import Instance, Role

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LiveCallPath:
    """What of the call path can be changed; components have what they take of themselves."""

    front: Front
    core: GatewayCore
    feed: Feed | None

    def component(self) -> Component:
        current = self.core.reload
        return Component(
            reconfigure={
                OnReload.FLEET: lambda wanted: self._fleet(current.settings, wanted),
                OnReload.POLICIES: lambda wanted: self._policies(current.settings, wanted),
                OnReload.MODELS: lambda wanted: self._models(current.settings, wanted),
                OnReload.TARGETS: self._targets,
                OnReload.TIMES: self._times,
                OnReload.INTAKE: self._intake,
                OnReload.INSIGHT: self._insight,
            }
        )

    def _fleet(self, before: Settings, wanted: Settings) -> Change:
        old = {instance.id: instance for instance in before.fleet}
        new = {instance.id: instance for instance in wanted.fleet}
        way_of = ways(wanted, self.core.heard)
        adopt, own = adopter(wanted), own_fields(wanted)

        def change() -> None:
            execution = self.core.execution
            execution.router.use(way_of)
            execution.encoding = encode_stage_of(
                wanted, self.core.scheduler, self.core.upstream, execution
            )
            service = self.front.service
            service.intake = replace(service.intake, own_fields=own)
            # Those that go by another name now are as well as they were.
            known = {_place(c.instance): c for c in self.core.endpoints if c.instance.id in old}
            differing = [one for one in new.values() if old.get(one.id) != one]
            for instance_id in [*(old.keys() - new.keys()), *(one.id for one in differing)]:
                self.core.endpoints.remove(instance_id)
                self.core.prober.forget(instance_id)
            # Between the two: what is configured now is not announced, and the other way round.
            if self.feed is not None:
                self.feed.adopt_by(adopt)
            for one in differing:
                self.core.endpoints.put(one)
                before_ = known.get(_place(one))
                if before_ is not None and before_.up and before_.instance.model == one.model:
                    self.core.endpoints.mark_up(
                        one.id, before_.models, before_.lengths, strict=before_.strict
                    )
                self.core.prober.add(one)

        return change

    def _policy(self, role: Role, key: str, wanted: Settings) -> Change:
        try:
            chosen = self.core.policies.of(role, wanted)
        except (LookupError, TypeError) as error:
            raise ConfigError(f"{key!r}: {error.args[0]}") from None
        return lambda: self.core.scheduler.use(role, chosen)

    def _policies(self, before: Settings, wanted: Settings) -> Change:
        """Those that are named otherwise now; the others keep what they have learnt."""
        changes = [
            self._policy(role, key, wanted)
            for role, key in policies.KEYS.items()
            if getattr(before, key) != getattr(wanted, key)
        ]
        return _all([*changes, self._limits(wanted)])

    def _models(self, before: Settings, wanted: Settings) -> Change:
        changes = [self._policies_of_models(wanted), self._times(wanted), self._intake(wanted)]
        changes.append(self._shares(wanted))
        if _protocols(before) != _protocols(wanted):
            changes.append(self._fleet(before, wanted))
        return _all(changes)

    def _shares(self, wanted: Settings) -> Change:
        def change() -> None:
            self.front.service.shares = shares_of(wanted, self.core.endpoints)

        return change

    def _policies_of_models(self, wanted: Settings) -> Change:
        try:
            chosen = self.core.policies.of_models(wanted)
        except (LookupError, TypeError) as error:
            raise ConfigError(f"'models': {error.args[0]}") from None
        return lambda: self.core.scheduler.use_of_models(chosen)

    def _targets(self, wanted: Settings) -> Change:
        changes = [self._policy(role, key, wanted) for role, key in policies.KEYS.items()]
        return _all([*changes, self._policies_of_models(wanted), self._limits(wanted)])

    def _limits(self, wanted: Settings) -> Change:
        """What is in time changes for calls that come, and what engines may have to read and answer for that."""

        def change() -> None:
            gate, limits = self.core.gate, limits_of(wanted)
            if gate is not None:
                gate.put(limits)
            elif limits.any:
                # What has no gate was built without one, as that costs calls nothing.
                _log.warning("targets: calls wait in the gateway for them from the next start on")

        return change

    def _times(self, wanted: Settings) -> Change:
        def change() -> None:
            self.core.upstream.use(timeouts_of(wanted.timeouts), timeouts_of_models(wanted))
            self.front.service.total = total_time_of(wanted)
            self.core.sessions.idle_seconds = wanted.timeouts.session_idle_seconds
            ping_seconds = wanted.timeouts.ping_seconds
            self.front.pings = Pings(ping_seconds) if ping_seconds else None
            self.core.execution.router.policy = retry_policy_of(wanted)
            encoding = self.core.execution.encoding
            if encoding is not None:
                encoding.attempts = wanted.max_attempts
            self.core.execution.max_resumes = wanted.max_attempts if wanted.resume else 0
            self.core.execution.early_first_token = wanted.early_first_token
            self.core.execution.read_back_is(wanted.read_back)

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
            service.steering = steering_of(wanted, self.core.endpoints)

        return change

    def _insight(self, wanted: Settings) -> Change:
        def change() -> None:
            self.front.debug = path_headers if wanted.debug_headers else None
            self.core.stats.log.wanted = wanted.call_log
            self.core.stats.log.prompts = wanted.log_prompts
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
