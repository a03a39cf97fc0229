from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policies.slo import InTime, slo
from pdgate.scheduling.sentence import Sentence
from pdgate.scheduling.surroundings import Surroundings, Targets
from tests.support.fleets import Known, fleet, prompt

TARGETS = Targets(ttft_seconds=2.0, tpot_seconds=0.05)


def reading(count: int = 3) -> list[Candidate]:
    """They read 10,000 tokens a second."""
    among = fleet(count)
    for one in among:
        for tokens in (1_000, 2_000, 4_000, 8_000):
            one.predicts.reading.learn(tokens, tokens / 10_000)
    return among


def made(role: Role, known: Known | None = None) -> Sentence | InTime:
    policy = slo(Surroundings(role, known, TARGETS))
    assert isinstance(policy, Sentence | InTime)
    return policy


def test_a_cached_prompt_is_worth_a_wait_within_the_target() -> None:
    """It takes longer until this call's first token, and leaves the others' engines alone."""
    among = reading()
    among[1].unread_tokens = 10_000

    chosen = made(Role.PREFILL, Known({"1": 3_600})).choose(prompt(4_000), among)

    assert chosen is among[1]


def test_a_cached_prompt_is_not_worth_to_miss_the_target() -> None:
    among = reading()
    among[1].unread_tokens = 22_000

    chosen = made(Role.PREFILL, Known({"1": 3_600})).choose(prompt(4_000), among)

    assert chosen is not among[1]


def test_a_call_that_will_be_late_joins_those_that_are() -> None:
    """So that it makes no others late; and it is counted."""
    among = reading()
    for one in among:
        one.unread_tokens = 80_000
    among[2].unread_tokens = 90_000
    policy = made(Role.PREFILL)

    assert policy.choose(prompt(4_000), among) is among[2]
    assert policy.passed_over == {"first_token_in_time": 1}


def test_under_overload_most_engines_stay_in_time() -> None:
    """A third more comes than can be read; each engine reads 10,000 tokens a second."""
    among, policy, in_time = reading(8), made(Role.PREFILL), 0

    for number in range(2_000):
        chosen = policy.choose(prompt(4_000), among)
        in_time += chosen.unread_tokens + 4_000 <= 20_000
        chosen.unread_tokens += 4_000
        if number % 8 == 7:
            for one in among:
                one.unread_tokens = max(0, one.unread_tokens - 3_000)

    assert in_time / 2_000 > 0.4


def test_decode_takes_who_has_least_in_flight() -> None:
    busy, idle = fleet(2, Role.DECODE)
    busy.calls, busy.tokens = 3, 30_000

    assert made(Role.DECODE).choose(prompt(4_000), [busy, idle]) is idle
