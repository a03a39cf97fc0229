"""What of its protocol a split call goes by: found once per instance, asked for by every call."""

from dataclasses import dataclass, replace
from functools import cached_property

from pdgate.forwarders.base import Forwarder, Mode
from pdgate.forwarders.crossing import Cross, way_across
from pdgate.forwarders.ownership import KvRules


@dataclass(frozen=True)
class Way:
    """How calls cross from (and to) an instance: its protocol's forwarder, and the mode.

    Attributes:
        lease_seconds: How its engines are set up, where that is not the protocol's default.
    """

    forwarder: Forwarder
    mode: Mode
    lease_seconds: float | None = None

    @cached_property
    def kv(self) -> KvRules:
        rules = self.forwarder.kv
        if self.lease_seconds is None or not rules.keeps:
            return rules
        return replace(rules, lease_seconds=self.lease_seconds)

    @cached_property
    def cross(self) -> Cross:
        """How to cross both engines at once; found once, as isinstance of an ABC is slow."""
        return way_across(self.forwarder)
