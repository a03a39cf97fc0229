from pdgate.scheduling.policies.prefix_then_load import prefix_then_load
from pdgate.scheduling.sentence.words import MANY_TOKENS
from pdgate.scheduling.surroundings import Surroundings
from tests.support.fleets import Known, fleet, prompt

CALL = prompt(1_000)
KNOWN = Surroundings(prefixes=Known({"1": 900}))


def test_a_prompt_goes_where_it_is_cached() -> None:
    among = fleet(3)
    among[1].calls, among[1].tokens = 3, 3_000

    assert prefix_then_load(KNOWN).choose(CALL, among) is among[1]


def test_a_hot_prefix_does_not_overload_its_engine() -> None:
    among = fleet(3)
    among[1].calls, among[1].tokens = 100, 20 * MANY_TOKENS

    assert prefix_then_load(KNOWN).choose(CALL, among) is not among[1]


def test_without_an_index_the_load_decides() -> None:
    among = fleet(3)
    among[0].calls = among[2].calls = 1

    policy = prefix_then_load(Surroundings())

    assert policy.choose(CALL, among) is among[1]
    assert not policy.needs_prefixes
    assert prefix_then_load(KNOWN).needs_prefixes
