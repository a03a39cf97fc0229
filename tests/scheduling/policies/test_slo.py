from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policies.slo import slo
from pdgate.scheduling.sentence import Sentence
from pdgate.scheduling.surroundings import Surroundings, Targets
from tests.support.fleets import Known, fleet, prompt

TARGETS = Targets(ttft_seconds=2.0, tpot_seconds=0.05)


def reading() -> list[Candidate]:
    """Three that read 10,000 tokens a second."""
    among = fleet(3)
    for one in among:
        for tokens in (1_000, 2_000, 4_000, 8_000):
            one.predicts.reading.learn(tokens, tokens / 10_000)
    return among


def made(role: Role, known: Known | None = None) -> Sentence:
    policy = slo(Surroundings(role, known, TARGETS))
    assert isinstance(policy, Sentence)
    return policy


def test_a_cached_prompt_is_worth_a_wait_within_the_target() -> None:
    """It takes longer until this call's first token, and leaves the others' engines alone."""
    among = reading()
    among[1].unread_tokens = 15_000

    chosen = made(Role.PREFILL, Known({"1": 3_600})).choose(prompt(4_000), among)

    assert chosen is among[1]


def test_a_cached_prompt_is_not_worth_to_miss_the_target() -> None:
    among = reading()
    among[1].unread_tokens = 22_000

    chosen = made(Role.PREFILL, Known({"1": 3_600})).choose(prompt(4_000), among)

    assert chosen is not among[1]


def test_where_nobody_can_keep_the_target_it_is_counted() -> None:
    among = reading()
    for one in among:
        one.unread_tokens = 90_000
    among[2].unread_tokens = 80_000
    policy = made(Role.PREFILL)

    assert policy.choose(prompt(4_000), among) is among[2]
    assert policy.passed_over == {"first_token_in_time": 1}


def test_decode_engines_are_kept_by_their_steps() -> None:
    slow, quick = fleet(2, Role.DECODE)
    slow.calls, slow.tokens = 300, 3_000_000

    policy = made(Role.DECODE)

    assert policy.choose(prompt(4_000), [slow, quick]) is quick
    slow.calls += 1
    assert policy.choose(prompt(4_000), [slow, slow]) is slow
    assert policy.passed_over == {"steps_in_time": 1}
