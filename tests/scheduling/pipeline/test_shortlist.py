"""Among very many, not all are looked at, and nobody is always left out."""

from collections import Counter
from random import Random

from pdgate.scheduling.pipeline.shortlist import ALL, DRAWN, MATCHED, Shortlist
from tests.support.fleets import Known, fleet, prompt

CALL = prompt(1000)


def test_few_are_all_looked_at() -> None:
    among = fleet(ALL)

    assert Shortlist(None, Random(1)).of(CALL, among) == among


def test_of_many_some_are_drawn_and_everybody_has_a_chance() -> None:
    among = fleet(1000)
    shortlist = Shortlist(None, Random(1))

    seen = Counter(one.instance.id for _ in range(400) for one in shortlist.of(CALL, among))

    assert sum(seen.values()) == 400 * DRAWN
    assert len(seen) == 1000


def test_nobody_is_twice_on_the_list() -> None:
    """Also where it goes on at the beginning, and where who was drawn has matched."""
    among = fleet(ALL + 1)
    shortlist = Shortlist(Known({one.instance.id: 10 for one in among}), Random(1))

    for _ in range(100):
        listed = [one.instance.id for one in shortlist.of(CALL, among)]
        assert len(listed) == len(set(listed))
        assert len(listed) >= DRAWN


def test_who_has_most_of_the_prompt_is_never_left_out() -> None:
    among = fleet(1000)
    system = {str(n): 100 for n in range(1000)}
    shortlist = Shortlist(Known(system | {"7": 900, "8": 500, "gone": 901}), Random(1))

    for _ in range(20):
        assert {"7", "8"} <= {one.instance.id for one in shortlist.of(CALL, among)}


def test_of_very_many_who_have_the_same_some_are_drawn() -> None:
    among = fleet(1000)
    shortlist = Shortlist(Known({str(n): 900 for n in range(100)}), Random(1))

    for _ in range(20):
        listed = [one for one in shortlist.of(CALL, among) if int(one.instance.id) < 100]
        assert len(listed) >= MATCHED


def test_another_eligible_set_is_another_list() -> None:
    """Instances that left are not remembered."""
    shortlist = Shortlist(Known({"3": 100}), Random(1))
    before, after = fleet(100), fleet(100)
    shortlist.of(CALL, before)

    assert before[3] not in shortlist.of(CALL, after)
    assert after[3] in shortlist.of(CALL, after)
