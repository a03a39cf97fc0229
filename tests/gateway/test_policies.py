"""Policies are made of what the settings say, for the role that they serve."""

from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import TargetsSection
from pdgate.gateway.policies import Policies
from pdgate.gateway.sync.workers.policy import LooksAround
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy import load as found
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.status import Beyond
from tests.support.fleets import fleet, prompt


def test_each_role_has_its_own_policy_and_context() -> None:
    asked: list[tuple[str, PolicyContext]] = []

    def load(name: str, context: PolicyContext) -> Policy:
        asked.append((name, context))
        return RoundRobin()

    caches = PrefixIndex()
    settings = Settings(
        prefill_policy="prefix_then_load",
        decode_policy="projected_kv",
        targets=TargetsSection(ttft_seconds=3.0, tpot_seconds=0.04),
    )
    for role in (Role.PREFILL, Role.DECODE, Role.PLAIN):
        Policies(load, caches).of(role, settings)

    assert [name for name, _ in asked] == ["prefix_then_load", "projected_kv", "slo"]
    assert [context.role for _, context in asked] == [Role.PREFILL, Role.DECODE, Role.PLAIN]
    assert all(context.prefixes is caches for _, context in asked)
    assert {context.targets.ttft_seconds for _, context in asked} == {3.0}
    assert {context.targets.tpot_seconds for _, context in asked} == {0.04}
    assert len({id(context.random) for _, context in asked}) == 3


def test_what_was_passed_over_is_counted_on_when_a_policy_is_replaced() -> None:
    """A counter that goes back is a restart to Prometheus, and what came before is lost."""
    policies, settings = Policies(), Settings(decode_policy="projected_kv")
    for _ in range(2):
        policy = policies.of(Role.DECODE, settings)
        policy.choose(prompt(1_000), _full())

    assert policies.passed_over == {(Role.DECODE, "projected_kv"): {"fits": 2}}


def test_it_is_counted_where_workers_know_of_each_other_as_well() -> None:
    def load(name: str, context: PolicyContext) -> Policy:
        return LooksAround(LooksAround(found(name, context), lambda: None), lambda: None)

    policies = Policies(load)
    policies.of(Role.DECODE, Settings(decode_policy="projected_kv")).choose(prompt(1_000), _full())

    assert policies.passed_over == {(Role.DECODE, "projected_kv"): {"fits": 1}}


def test_policies_that_keep_all_engines_have_no_count() -> None:
    policies = Policies()
    policies.of(Role.DECODE, Settings(decode_policy="round_robin"))

    assert policies.passed_over == {}


def _full() -> list[Endpoint]:
    """Engines whose KV has no room for a call."""
    among = fleet(2, Role.DECODE)
    for one in among:
        one.beyond = Beyond(kv_tokens=1_000, kv_capacity=1_000)
    return among
