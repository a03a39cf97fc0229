"""The policy of each role, made of what the settings say of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdgate.gateway.config.settings import Settings
from pdgate.protocols.instance import Role
from pdgate.scheduling.policy import Policy, load
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.surroundings import Surroundings, Targets

KEYS: Final = {
    Role.PREFILL: "prefill_policy",
    Role.DECODE: "decode_policy",
    Role.PLAIN: "plain_policy",
}

Load = Callable[[str, Surroundings], Policy]
"""The policy of a name; raises LookupError and TypeError as `scheduling.policy.load`."""


@dataclass(frozen=True, slots=True)
class Policies:
    """
    Attributes:
        load: How a policy is found and made.
        prefixes: Who has what cached, where somebody keeps count.
    """

    load: Load = load
    prefixes: PrefixIndex | None = None

    def of(self, role: Role, settings: Settings) -> Policy:
        """Raises LookupError, TypeError."""
        section = settings.targets
        targets = Targets(section.ttft_seconds, section.tpot_seconds)
        return self.load(getattr(settings, KEYS[role]), Surroundings(role, self.prefixes, targets))
