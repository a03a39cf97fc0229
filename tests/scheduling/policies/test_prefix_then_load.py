from pdgate.scheduling.pipeline.scorers import MANY_TOKENS
from pdgate.scheduling.policies.prefix_then_load import prefix_then_load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from tests.support.fleets import Known, fleet, prompt

CALL = prompt(1_000)
KNOWN = PolicyContext(prefixes=Known({"1": 900}))


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

    policy = prefix_then_load(PolicyContext())

    assert policy.choose(CALL, among) is among[1]
    assert not policy.needs_prefixes
    assert prefix_then_load(KNOWN).needs_prefixes


def test_it_is_explained_in_the_words_that_the_page_on_policies_has() -> None:
    """A method of the index is what is asked, and its name is what operators read."""
    known, unknown = fleet(2)
    for context in (PolicyContext(prefixes=PrefixIndex()), KNOWN):
        assert (
            "cached_share 0.000 + idleness 1.000"
            in prefix_then_load(context).explain(CALL, [known])[0].why
        )
    assert "cached_share 0.900" in prefix_then_load(KNOWN).explain(CALL, [unknown])[0].why
