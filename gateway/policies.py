"""Policies of each role, made of what the settings say of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pdgate.gateway.config.settings import Settings
from pdgate.protocols.instance import Role
from pdgate.scheduling.policy import Policy, load
from pdgate.scheduling.policy_context import PolicyContext, Targets
from pdgate.scheduling.prefix.index import PrefixIndex

KEYS: Final = {
    Role.PREFILL: "prefill_policy",
    Role.DECODE: "decode_policy",
    Role.PLAIN: "plain_policy",
}

Load = Callable[[str, PolicyContext], Policy]
"""The policy of a name; raises LookupError and TypeError as `scheduling.policy.load`."""


def targets_of(settings: Settings) -> Targets:
    """Targets that are set, and what policies take for one that is not."""
    return Targets(**settings.targets.model_dump(exclude_none=True))


@dataclass(frozen=True, slots=True)
class Policies:
    """
    Attributes:
        load: How a policy is found and made.
        prefixes: What engines have cached, where that is counted.
        passed_over: Role and name of a policy -> which of its conditions no engine met, how often.
            All policies of a name count here, one after the other, so that no count goes back.
    """

    load: Load = load
    prefixes: PrefixIndex | None = None
    passed_over: dict[tuple[Role, str], Counter[str]] = field(default_factory=dict)

    def of(self, role: Role, settings: Settings) -> Policy:
        """Raises LookupError, TypeError."""
        return self._named(getattr(settings, KEYS[role]), role, settings)

    def of_models(self, settings: Settings) -> dict[str, dict[Role, Policy]]:
        """Model -> those that are its own. Raises LookupError, TypeError."""
        return {
            model.name: own
            for model in settings.models
            if (
                own := {
                    role: self._named(getattr(model, key), role, settings)
                    for role, key in KEYS.items()
                    if getattr(model, key)
                }
            )
        }

    def _named(self, name: str, role: Role, settings: Settings) -> Policy:
        policy = self.load(name, PolicyContext(role, self.prefixes, targets_of(settings)))
        if policy.passed_over is not None:
            policy.passed_over = self.passed_over.setdefault((role, name), Counter())
        return policy
