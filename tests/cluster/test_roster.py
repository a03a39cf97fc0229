"""Who is in use after each event, above all around an outage of the store."""

from dataclasses import replace

import pytest

from pdgate.cluster.directory import Event, Joined, Left, Listed, Lost, Refused, Resumed
from pdgate.cluster.roster import Roster
from pdgate.protocols.instance import Role
from tests.cluster.watching import D, P

GRACE = 10.0
BOTH = Listed({P.key: P, D.key: D})
AWAY = Lost("etcd is away")


def roster(*events: Event, now: float = 0.0) -> Roster:
    made = Roster(GRACE)
    for event in events:
        made.apply(event, now)
    return made


def keys(made: Roster) -> set[str]:
    return set(made.in_use)


def test_nobody_is_known_before_the_store_has_told() -> None:
    assert not roster().listed
    assert roster(BOTH).listed


def test_who_joins_is_in_use_and_who_leaves_is_not() -> None:
    made = roster(Listed({}), Joined(P.key, P))
    assert keys(made) == {P.key}

    made.apply(Left(P.key), 1)
    assert keys(made) == set()


def test_a_member_that_drains_gets_no_calls() -> None:
    assert keys(roster(BOTH, Joined(D.key, D.draining()))) == {P.key}


def test_what_was_known_stays_in_use_in_an_outage() -> None:
    made = roster(BOTH, AWAY)
    made.expire(now=1e9)

    assert (keys(made), made.degraded, made.losses) == ({P.key, D.key}, "etcd is away", 1)


def test_an_outage_that_is_told_again_is_the_same_one() -> None:
    assert roster(BOTH, AWAY, AWAY).losses == 1
    assert roster(BOTH, AWAY, Resumed(), AWAY).losses == 2


@pytest.mark.parametrize("back", [Listed({P.key: P}), Resumed()], ids=["listed", "resumed"])
def test_after_an_outage_nothing_is_degraded(back: Event) -> None:
    assert roster(BOTH, AWAY, back).degraded is None


def test_who_is_missing_after_an_outage_is_doubted_and_then_dropped() -> None:
    """Its lease ended while nobody could renew it; it announces itself again if it lives."""
    made = roster(BOTH, AWAY, Listed({P.key: P}), now=100)

    assert (keys(made), made.next_change) == ({P.key, D.key}, 100 + GRACE)
    made.expire(100 + GRACE - 1)
    assert keys(made) == {P.key, D.key}
    made.expire(100 + GRACE)
    assert keys(made) == {P.key}


def test_who_is_back_in_time_is_doubted_no_more() -> None:
    made = roster(BOTH, AWAY, Listed({}), Joined(P.key, P), Joined(D.key, D))
    made.expire(1e9)

    assert keys(made) == {P.key, D.key}


def test_leases_that_end_right_after_an_outage_are_doubted() -> None:
    made = roster(BOTH, AWAY, Resumed(), now=100)
    made.apply(Left(D.key), 100 + GRACE - 1)

    assert keys(made) == {P.key, D.key}


def test_who_leaves_long_after_an_outage_is_gone_at_once() -> None:
    made = roster(BOTH, AWAY, Resumed(), now=100)
    made.apply(Left(D.key), 100 + GRACE)

    assert keys(made) == {P.key}


def test_who_drained_is_gone_at_once_even_after_an_outage() -> None:
    made = roster(BOTH, AWAY, Resumed(), Joined(D.key, D.draining()), Left(D.key))

    assert (keys(made), made.next_change) == ({P.key}, None)


def test_a_second_outage_keeps_the_doubted() -> None:
    """Nobody can announce itself meanwhile."""
    made = roster(BOTH, AWAY, Listed({}), AWAY, now=100)
    made.expire(100 + 10 * GRACE)

    assert keys(made) == {P.key, D.key}
    assert made.next_change == 100 + 11 * GRACE


def test_an_entry_that_is_overwritten_with_nonsense_is_out() -> None:
    made = roster(BOTH, Refused(D.key, "no JSON"))
    assert (keys(made), made.refused) == ({P.key}, {D.key: "no JSON"})

    made.apply(Joined(D.key, D), 1)
    assert (keys(made), made.refused) == ({P.key, D.key}, {})


def test_nonsense_that_is_listed_after_an_outage_is_not_doubted() -> None:
    made = roster(BOTH, AWAY, Listed({P.key: P}, refused={D.key: "no JSON"}))

    assert (keys(made), made.next_change) == ({P.key}, None)


def test_a_list_that_comes_without_an_outage_is_believed() -> None:
    assert keys(roster(BOTH, Listed({P.key: P}))) == {P.key}


def test_a_restart_replaces_the_record() -> None:
    again = replace(P, epoch="two")

    assert roster(BOTH, Joined(P.key, again)).in_use[P.key] == again


def test_of_two_entries_at_one_address_the_later_one_counts() -> None:
    """One engine listens there: its role has changed, or it has restarted in another one."""
    now = replace(P, role=Role.BOTH)

    assert keys(roster(BOTH, Joined(now.key, now))) == {now.key, D.key}
    assert keys(roster(BOTH, Joined(now.key, now), Left(P.key))) == {now.key, D.key}
    assert keys(roster(Listed({now.key: now, P.key: P}))) == {P.key}


def test_who_left_its_role_in_an_outage_is_not_doubted_but_gone() -> None:
    now = replace(P, role=Role.DECODE)
    made = roster(BOTH, AWAY, Listed({now.key: now, D.key: D}))

    assert (keys(made), made.next_change) == ({now.key, D.key}, None)
