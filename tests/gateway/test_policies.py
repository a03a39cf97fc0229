"""Policies are made of what the settings say, for the role that they serve."""

from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import Targets
from pdgate.gateway.policies import Policies
from pdgate.protocols.instance import Role
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.surroundings import Surroundings


def test_each_role_has_its_own_policy_and_surroundings() -> None:
    asked: list[tuple[str, Surroundings]] = []

    def load(name: str, around: Surroundings) -> Policy:
        asked.append((name, around))
        return RoundRobin()

    caches = PrefixIndex()
    settings = Settings(
        prefill_policy="prefix_then_load",
        decode_policy="projected_kv",
        targets=Targets(ttft_seconds=3.0, tpot_seconds=0.04),
    )
    for role in (Role.PREFILL, Role.DECODE, Role.PLAIN):
        Policies(load, caches).of(role, settings)

    assert [name for name, _ in asked] == ["prefix_then_load", "projected_kv", "slo"]
    assert [around.role for _, around in asked] == [Role.PREFILL, Role.DECODE, Role.PLAIN]
    assert all(around.prefixes is caches for _, around in asked)
    assert {around.targets.ttft_seconds for _, around in asked} == {3.0}
    assert {around.targets.tpot_seconds for _, around in asked} == {0.04}
    assert len({id(around.random) for _, around in asked}) == 3
