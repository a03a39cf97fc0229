import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.admission import Line, LinePlace


def line_of(*places: LinePlace) -> Line:
    line = Line()
    for place in places:
        line.join(place)
    return line


def all_of(line: Line) -> list[LinePlace]:
    return [line.next() for _ in range(len(line))]


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    first, second = LinePlace(), LinePlace()

    assert all_of(line_of(first, second)) == [first, second]


def test_the_more_urgent_is_served_first() -> None:
    later, sooner = LinePlace(urgency=3), LinePlace(urgency=0)

    assert all_of(line_of(later, sooner)) == [sooner, later]


def test_who_sends_many_waits_behind_itself_and_not_before_others() -> None:
    many = [LinePlace(tenant="many", tokens=10) for _ in range(5)]
    one = LinePlace(tenant="one", tokens=10)

    assert all_of(line_of(*many, one)).index(one) == 1


def test_who_sends_long_prompts_gets_fewer_turns() -> None:
    long = [LinePlace(tenant="long", tokens=300) for _ in range(3)]
    short = [LinePlace(tenant="short", tokens=100) for _ in range(6)]

    first_four = all_of(line_of(*long, *short))[:4]

    assert [place.tenant for place in first_four] == ["long", "short", "short", "short"]


def test_who_was_away_has_saved_up_nothing() -> None:
    line = line_of(*(LinePlace(tenant="there", tokens=10) for _ in range(10)))
    for _ in range(5):
        line.next()
    for _ in range(3):
        line.join(LinePlace(tenant="back", tokens=10))

    assert [place.tenant for place in all_of(line)][:4].count("back") <= 2


def test_who_leaves_is_not_served() -> None:
    left, stays = LinePlace(), LinePlace()
    line = line_of(left, stays)

    line.leave(left)
    line.leave(left)

    assert all_of(line) == [stays]


def test_nobody_is_next_in_an_empty_line() -> None:
    with pytest.raises(LookupError):
        Line().next()


def test_the_least_urgent_gives_way_to_a_more_urgent_newcomer() -> None:
    least = LinePlace(urgency=7)

    assert line_of(LinePlace(urgency=0), least).gives_way(LinePlace(urgency=3)) is least


@pytest.mark.parametrize("urgency", [3, 7])
def test_a_newcomer_that_is_no_more_urgent_gives_way_itself(urgency: int) -> None:
    newcomer = LinePlace(urgency=urgency)

    assert line_of(LinePlace(), LinePlace()).gives_way(newcomer) is newcomer


def test_the_newest_of_who_has_most_waiting_gives_way_to_another_tenant() -> None:
    many = [LinePlace(tenant="many") for _ in range(3)]

    assert line_of(*many).gives_way(LinePlace(tenant="one")) is many[-1]


def test_what_tenants_had_is_forgotten_when_they_are_gone() -> None:
    line = Line()
    for number in range(1000):
        line.join(LinePlace(tenant=f"tenant {number}"))
        line.next()

    assert sum(len(level.in_time.had) for level in line._levels.values()) < 5


def test_who_is_late_goes_after_those_who_are_not_and_in_turn() -> None:
    """Served in turn it would make others late; and a flood of late ones is one tenant's."""
    late = [LinePlace(tenant="many", tokens=10, due=5.0) for _ in range(3)]
    of_another = LinePlace(tenant="other", tokens=10, due=5.0)
    in_time = [LinePlace(tokens=10, due=20.0) for _ in range(2)]
    line = line_of(*late, of_another, *in_time)

    served = [line.next(now=10.0) for _ in range(6)]

    assert served[:2] == in_time
    assert of_another in served[2:4]


def test_late_ones_have_a_share_of_what_begins() -> None:
    """One of nine, where an eighth of the time is theirs, so that they are served however many others come;
    tokens do not say how long a long prompt takes."""
    line = Line(late_share=0.125)
    late = LinePlace(tokens=9000, due=5.0, seconds=1.0)
    line.join(late)
    for _ in range(30):
        line.join(LinePlace(tokens=100, due=50.0, seconds=1.0))

    served = [line.next(now=10.0) for _ in range(12)]

    assert served.index(late) == 8


def test_who_is_late_may_leave_and_gives_way_first() -> None:
    leaves, late, in_time = LinePlace(due=5.0), LinePlace(due=5.0), LinePlace(due=20.0)
    line = line_of(leaves, late, in_time, LinePlace(due=20.0))
    assert line.next(now=10.0) is in_time
    assert line.ahead(LinePlace()) == 1

    line.leave(leaves)

    assert line.gives_way(LinePlace()) is late
    assert len(line) == 2


def test_who_would_make_many_late_goes_after_them() -> None:
    long = LinePlace(tokens=5000, due=6.0)
    short = [LinePlace(tokens=500, due=4.0) for _ in range(5)]
    line = line_of(long, *short)

    served = [line.next(now=0.0, tokens_per_second=1000.0) for _ in range(6)]

    assert served == [*short, long]


def test_where_all_can_be_in_time_each_has_its_turn() -> None:
    places = [LinePlace(tokens=tokens, due=20.0) for tokens in (5000, 500, 9000, 10)]
    line = line_of(*places)

    assert [line.next(now=0.0, tokens_per_second=1000.0) for _ in range(4)] == places


def test_the_longest_go_after_their_own_tenants_others_only() -> None:
    """Else one that sends long prompts would have no turn while another sends short ones."""
    long = [LinePlace(tenant="long", tokens=9000, due=4.0) for _ in range(2)]
    short = [LinePlace(tenant="short", tokens=500, due=4.0) for _ in range(30)]
    line = line_of(*short, *long)

    served = [line.next(now=0.0, tokens_per_second=1000.0) for _ in range(20)]

    assert long[0] in served[:2]


def test_who_has_become_late_among_the_longest_is_among_the_late() -> None:
    long = LinePlace(tokens=50_000, due=6.0)
    line = line_of(long, *(LinePlace(tokens=500, due=9.0) for _ in range(20)))
    line.next(now=0.0, tokens_per_second=1000.0)
    assert line.ahead(LinePlace()) == 20

    line.next(now=7.0, tokens_per_second=1000.0)

    assert line.ahead(LinePlace()) == 18
    line.leave(long)
    assert len(line) == 18


def test_who_goes_last_is_found_out_anew_when_engines_have_less_to_read_than_they_said() -> None:
    """For a moment all of them are late, as an engine seems to read something else for minutes."""
    line = line_of(*(LinePlace(tokens=10, due=10.0) for _ in range(2)))
    line.next(300.0, tokens_per_second=10.0)
    long, short = LinePlace(tokens=100, due=5.0), LinePlace(tokens=10, due=5.0)
    line.join(long)
    line.join(short)

    assert line.next(0.0, tokens_per_second=10.0) is short


def test_those_before_a_newcomer_are_no_less_urgent_and_few_of_any_other_tenant() -> None:
    line = line_of(*(LinePlace(urgency=7, tenant="many") for _ in range(60)))

    assert line.ahead(LinePlace(urgency=0, tenant="one")) == 0
    assert line.ahead(LinePlace(urgency=7, tenant="one")) == 1
    assert line.ahead(LinePlace(urgency=7, tenant="many")) == 60
    line.join(LinePlace(urgency=7, tenant="one"))
    assert line.ahead(LinePlace(urgency=7, tenant="one")) == 1 + 2


def test_late_ones_that_are_more_urgent_are_before_a_newcomer() -> None:
    late = LinePlace(urgency=3, due=5.0)
    line = line_of(late, LinePlace(urgency=3, due=20.0))
    line.next(now=10.0)

    assert line.ahead(LinePlace(urgency=3, due=20.0)) == 0
    assert line.ahead(LinePlace(urgency=7, due=20.0)) == 1


SOME = st.builds(LinePlace, urgency=st.integers(2, 4), tenant=st.sampled_from("abc"))


@given(st.lists(SOME, max_size=30), SOME, st.data())
def test_so_many_are_served_before_a_newcomer(
    some: list[LinePlace], newcomer: LinePlace, data: st.DataObject
) -> None:
    """Of prompts that are equally long, and but for who is first of those that have had the same."""
    line = line_of(*some)
    for place in some:
        if data.draw(st.booleans()):
            line.leave(place)

    ahead = line.ahead(newcomer)
    line.join(newcomer)

    assert 0 <= ahead - all_of(line).index(newcomer) <= 2


class Name(str):
    """Counts how often it is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        Name.looked_up += 1
        return super().__hash__()


@pytest.mark.parametrize("leaves", [False, True])
def test_each_of_many_tenants_costs_as_much_as_each_of_few(leaves: bool) -> None:
    """A thousand let in at once took a tenth of a second, and three thousand a second."""

    def cost(tenants: int) -> float:
        places = [LinePlace(tenant=Name(f"tenant {number}")) for number in range(tenants)]
        line, Name.looked_up = line_of(*places), 0
        for place in places:
            if leaves:
                line.leave(place)
            else:
                assert line.next() is place
        return Name.looked_up / tenants

    assert cost(1000) < 2 * cost(10)


def test_who_comes_and_goes_again_and_again_is_not_remembered_each_time() -> None:
    line = line_of(*(LinePlace(tenant="there", tokens=10) for _ in range(10)))
    served = LinePlace(tenant="back", tokens=1000)
    line.join(served)
    while line.next() is not served:
        pass
    for _ in range(1000):
        place = LinePlace(tenant="back")
        line.join(place)
        line.leave(place)

    (level,) = line._levels.values()
    assert len(level.in_time.order) < 100
    assert len(level.in_time.gone) < 100
