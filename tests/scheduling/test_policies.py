"""What each policy promises, and how policies are found."""

from collections import Counter
from importlib.metadata import EntryPoint, EntryPoints
from random import Random

import pytest

from pdgate.protocols import plugins
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling import policy
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline.scorers import TOKENS_PER_CALL
from pdgate.scheduling.policies.least_loaded import LeastLoaded
from pdgate.scheduling.policies.random_two import RandomTwo
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.status import Beyond
from tests.support.scripted import chat

CALL = chat()


def endpoints(*loads: tuple[int, int]) -> list[Endpoint]:
    """(calls, tokens) each."""
    return [
        Endpoint(
            Instance(str(n), f"http://{n}", Role.DECODE, "p"), up=True, calls=calls, tokens=tokens
        )
        for n, (calls, tokens) in enumerate(loads)
    ]


def test_round_robin_is_even() -> None:
    among, turns = endpoints((0, 0), (0, 0), (0, 0)), RoundRobin()

    chosen = [turns.choose(CALL, among).instance.id for _ in range(9)]

    assert chosen == chosen[:3] * 3
    assert set(chosen) == {"0", "1", "2"}


def test_round_robin_survives_a_smaller_fleet() -> None:
    turns = RoundRobin()
    for _ in range(5):
        turns.choose(CALL, endpoints((0, 0), (0, 0), (0, 0)))

    assert turns.choose(CALL, endpoints((0, 0))).instance.id == "0"


def test_least_loaded_counts_prompt_tokens() -> None:
    among = endpoints((1, 5000), (1, 100), (1, 4000))

    assert all(LeastLoaded().choose(CALL, among) is among[1] for _ in range(3))


def test_least_loaded_sees_many_short_calls() -> None:
    """Their answers have to be decoded, whatever their prompts were."""
    among = endpoints((10, 100), (1, 9 * TOKENS_PER_CALL))

    assert LeastLoaded().choose(CALL, among) is among[1]


@pytest.mark.parametrize("beyond", [Beyond(calls=5), Beyond(unread_tokens=2000)], ids=str)
@pytest.mark.parametrize("kind", [LeastLoaded, RandomTwo])
def test_what_others_have_there_counts(kind: type[LeastLoaded | RandomTwo], beyond: Beyond) -> None:
    """Of engines that several gateways use, without telling each other."""
    among = endpoints((0, 0), (2, 400))
    among[0].beyond = beyond
    policy = kind(Random(3))

    assert {policy.choose(CALL, among).instance.id for _ in range(9)} == {"1"}
    said = policy.explain(CALL, among)
    assert f"{beyond.calls} calls with {beyond.unread_tokens} tokens in flight" in said[0].why


def test_least_loaded_lets_equals_take_turns() -> None:
    """Otherwise an idle fleet would be one busy engine."""
    among, least = endpoints((0, 0), (0, 0), (0, 0)), LeastLoaded()

    least.choose(CALL, among), least.choose(CALL, among)
    chosen = Counter(least.choose(CALL, among).instance.id for _ in range(9))

    assert chosen == {"0": 3, "1": 3, "2": 3}


def test_two_least_loaded_do_not_go_in_step() -> None:
    """An idle fleet of two and two has four pairs, not two."""
    among = endpoints((0, 0), (0, 0))
    prefill, decode = LeastLoaded(Random(1)), LeastLoaded(Random(2))

    pairs = {
        (prefill.choose(CALL, among).instance.id, decode.choose(CALL, among).instance.id)
        for _ in range(40)
    }

    assert len(pairs) == 4


def test_random_two_takes_the_less_loaded_of_its_draw() -> None:
    among = endpoints((9, 900), (0, 0))

    assert all(RandomTwo(Random(n)).choose(CALL, among) is among[1] for n in range(9))


def test_random_two_never_takes_the_most_loaded_of_three() -> None:
    among, two = endpoints((9, 900), (0, 0), (1, 10)), RandomTwo(Random(1))

    chosen = {two.choose(CALL, among).instance.id for _ in range(50)}

    assert chosen == {"1", "2"}


def test_random_two_repeats_itself_with_the_same_seed() -> None:
    among = endpoints(*[(0, 0)] * 9)

    one, other = (
        [two.choose(CALL, among).instance.id for _ in range(20)]
        for two in (RandomTwo(Random(7)), RandomTwo(Random(7)))
    )

    assert one == other


def test_random_two_is_content_with_one() -> None:
    among = endpoints((0, 0))

    assert RandomTwo().choose(CALL, among) is among[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("least_loaded", LeastLoaded), ("random_two", RandomTwo), ("round_robin", RoundRobin)],
)
def test_ours_are_found_by_name(name: str, kind: type[policy.Policy]) -> None:
    assert isinstance(policy.load(name, PolicyContext()), kind)
    assert name in plugins.names(plugins.POLICIES)


def test_each_role_gets_an_object_of_its_own() -> None:
    """Turns of prefill must not skip those of decode."""
    assert policy.load("round_robin", PolicyContext()) is not policy.load(
        "round_robin", PolicyContext()
    )


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"'nope'; there are .*least_loaded, .*round_robin"):
        policy.load("nope", PolicyContext())


def test_a_policy_declared_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    value = "pdgate.scheduling.policies.round_robin:RoundRobin"
    found = EntryPoints([EntryPoint("twice", value, plugins.POLICIES)] * 2)
    monkeypatch.setattr(plugins, "entry_points", found.select)

    with pytest.raises(LookupError, match="'twice' is declared by several packages"):
        policy.load("twice", PolicyContext())


def test_what_is_no_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("wrong", "json:JSONDecoder", plugins.POLICIES)])
    monkeypatch.setattr(plugins, "entry_points", found.select)

    with pytest.raises(TypeError, match="json:JSONDecoder is no Policy"):
        policy.load("wrong", PolicyContext())


def test_a_policy_is_made_of_its_context() -> None:
    """Two with the same lots draw alike, so that a simulation repeats itself."""
    among = endpoints(*[(0, 0)] * 9)
    one, other = (policy.load("random_two", PolicyContext(random=Random(7))) for _ in range(2))

    assert [one.choose(CALL, among) for _ in range(9)] == [
        other.choose(CALL, among) for _ in range(9)
    ]


def test_a_function_may_make_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its context, as a class does in `made`."""
    found = EntryPoints([EntryPoint("made", f"{__name__}:two_of_them", plugins.POLICIES)])
    monkeypatch.setattr(plugins, "entry_points", found.select)

    assert isinstance(policy.load("made", PolicyContext()), RandomTwo)


def two_of_them(context: PolicyContext) -> policy.Policy:
    return RandomTwo(context.random)


def test_what_a_function_makes_has_to_be_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoints([EntryPoint("wrong", "builtins:repr", plugins.POLICIES)])
    monkeypatch.setattr(plugins, "entry_points", found.select)

    with pytest.raises(TypeError, match="builtins:repr is no Policy"):
        policy.load("wrong", PolicyContext())
