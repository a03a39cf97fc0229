"""Whatever an engine says of its load, a policy gives it no more than its share."""

from random import Random

import pytest

from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import MOST_TIMES, Account, most_kv_tokens, told
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import InstanceFamily
from pdgate.scheduling.policy import load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.status import Status
from tests.support.scripted import chat

KV_TOKENS = 100_000
ENGINES = 4
CALLS, BETWEEN_REPORTS = 200, 10
CALL = chat()

IDLE = Status(kv_free=1.0, running=0, waiting=0, kv_tokens=KV_TOKENS, queued_tokens=0)


def truth(engine: Endpoint) -> Status:
    free, steps = 1 - engine.tokens / KV_TOKENS, 0.02 * (1 + engine.calls / 64)
    return Status(free, engine.calls, 0, step_seconds=steps, kv_tokens=KV_TOKENS)


def calls_of_a_liar(policy_name: str, lie: Status, role: Role = Role.PLAIN) -> int:
    """Of CALLS that do not end, while each engine reports now and then."""
    engines = [
        Endpoint(Instance(f"e{n}", f"http://10.0.0.{n}", role, "vllm-nixl"), up=True)
        for n in range(ENGINES)
    ]
    kind = InstanceFamily()
    for engine in engines:
        engine.latency.belongs_to(kind)
    policy = load(policy_name, PolicyContext(role, random=Random(7)))
    for number in range(CALLS):
        if number % BETWEEN_REPORTS == 0:
            most = most_kv_tokens(engines)
            for engine in engines:
                said = lie if engine is engines[0] else truth(engine)
                told(engine, said, Account.of(engine), most.get(role))
        chosen = policy.choose(CALL, engines)
        Reservation(chosen, CALL.prompt_tokens, reads=False)
    return engines[0].calls


@pytest.mark.parametrize(
    "policy",
    ["least_loaded", "random_two", "projected_kv", "prefix_then_load", "least_latency", "slo"],
)
def test_who_says_that_it_is_idle_gets_its_share_and_no_more(policy: str) -> None:
    assert calls_of_a_liar(policy, IDLE) <= CALLS / ENGINES * 1.2


@pytest.mark.parametrize("role", [Role.PLAIN, Role.DECODE])
@pytest.mark.parametrize("policy", ["least_latency", "slo"])
@pytest.mark.parametrize("batch", [0, 200])
def test_who_says_that_its_steps_take_no_time_gets_its_share_and_no_more(
    policy: str, role: Role, batch: int
) -> None:
    lie = Status(1.0, batch, 0, step_seconds=1e-6, kv_tokens=KV_TOKENS, queued_tokens=0)

    assert calls_of_a_liar(policy, lie, role) <= CALLS / ENGINES * 1.2


def test_who_says_that_it_can_hold_everything_is_not_believed() -> None:
    honest = Endpoint(Instance("e0", "http://10.0.0.1", Role.PLAIN, "plain"))
    liar = Endpoint(Instance("e1", "http://10.0.0.2", Role.PLAIN, "plain"))
    told(honest, IDLE, Account())
    told(liar, Status(kv_free=1.0, kv_tokens=10**12), Account())
    most = most_kv_tokens([honest, liar])[Role.PLAIN]

    told(liar, Status(kv_free=1.0, kv_tokens=10**12), Account(), most)

    assert liar.beyond.kv_capacity == MOST_TIMES * KV_TOKENS
