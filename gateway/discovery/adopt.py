"""Adoption: a member of a directory as an instance of this gateway.

An entry may be written by all that reach the store, so it passes the same checks as one in
the configuration, and a configured instance is never replaced by an announced one.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from pdgate.cluster.member import Member
from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.checks import check_kind
from pdgate.protocols import plugins
from pdgate.protocols.dialects.neuron import STATIC
from pdgate.protocols.instance import Instance, Role


class UnusableMember(Exception):
    """The member gets no calls; the message says why, for operators."""


Adopt = Callable[[Member], Instance]

KINDS: Final = 256
"""Of engines, whose check is remembered: it takes 10 ms, and every event may need all of them."""


def adopter(settings: Settings) -> Adopt:
    """Member -> its record, what it left out filled in; raises UnusableMember."""
    fleet = settings.fleet
    ids = {instance.id for instance in fleet}
    places = {(instance.role, instance.url) for instance in fleet}

    def adopt(member: Member) -> Instance:
        said = member.instance()
        if said.id in ids or (said.role, said.url) in places:
            raise UnusableMember("it is configured already")
        default = settings.protocol_of(said.model) if said.role.hands_over else Role.PLAIN.value
        protocol = said.protocol or default
        generation = said.generation or settings.generation(protocol)
        instance = replace(said, protocol=protocol, generation=generation)
        if why := why_not(instance.role, protocol, generation):
            raise UnusableMember(why)
        if protocol == "neuron" and generation == STATIC and not instance.pair:
            # Of one pair today, and no rule could say which engines are meant when another joins.
            raise UnusableMember(
                "neuron generation static knows one peer: the entry has to say 'pair'"
            )
        return instance

    known = frozenset(plugins.names(plugins.FORWARDERS))

    @lru_cache(KINDS)
    def why_not(role: Role, protocol: str, generation: str) -> str:
        """Empty if such engines can be used."""
        if protocol not in known:
            # Not asked for by its name: that looks through all packages, which takes milliseconds.
            return f"such an engine: no protocol is called {protocol!r}"
        try:
            check_kind(settings, "such an engine", role, protocol, generation)
        except ConfigError as error:
            return str(error)
        return ""

    return adopt
