"""Slices overlap and come one by one; what is told of them does not show it."""

from dataclasses import replace

from pdgate.cluster.directory import Joined, Left, Listed, Refused
from pdgate.cluster.kubernetes.fleet import SliceFleet
from pdgate.cluster.kubernetes.slices import UNREADY, Slice, SliceEndpoint
from pdgate.cluster.member import Member
from pdgate.protocols.instance import Role
from tests.cluster.watching import D, P

V4, V6 = "IPv4", "IPv6"
Q = replace(P, host="10.0.0.7", epoch="seven")


def of(name: str, *members: Member, family: str = V4) -> Slice:
    return Slice(name, tuple(SliceEndpoint(each, each.epoch, family) for each in members))


def told(*slices: Slice) -> SliceFleet:
    fleet = SliceFleet()
    fleet.list(slices)
    return fleet


def test_all_slices_are_one_list() -> None:
    assert SliceFleet().list([of("a", P), of("b", D)]) == Listed({P.key: P, D.key: D})


def test_only_what_changed_in_a_slice_is_told() -> None:
    fleet = told(of("a", P, Q))

    assert fleet.put(of("a", P, D)) == [Joined(D.key, D), Left(Q.key)]
    assert fleet.put(of("a", P, D)) == []


def test_who_is_in_two_slices_stays_until_both_have_lost_it() -> None:
    fleet = told(of("a", P), of("b", P))

    assert fleet.put(of("a")) == []
    assert fleet.drop("b") == [Left(P.key)]


def test_who_moves_from_a_slice_to_another_was_never_away() -> None:
    fleet = told(of("a", P))

    assert fleet.put(of("b", P)) == []
    assert fleet.drop("a") == []


def test_who_is_ready_in_one_of_two_slices_is_ready() -> None:
    unready = replace(P, state=UNREADY)

    assert SliceFleet().list([of("a", P), of("b", unready)]).members == {P.key: P}
    assert SliceFleet().list([of("b", unready), of("a", P)]).members == {P.key: P}


def test_of_two_pods_at_one_address_the_one_that_is_ready_counts() -> None:
    """The address of a pod that ended has been given to another."""
    old, new = replace(P, state="draining"), replace(P, epoch="two")

    assert SliceFleet().list([of("a", new), of("b", old)]).members == {P.key: new}


def test_of_two_roles_at_one_address_the_one_written_last_counts() -> None:
    """A pod whose labels changed is in the slices of both Services for a moment."""
    now = replace(P, role=Role.DECODE)
    fleet = told(of("prefill", P))

    assert fleet.put(of("decode", now)) == [Joined(now.key, now), Left(P.key)]
    assert fleet.put(of("prefill")) == []


def test_where_the_last_role_goes_the_one_before_is_back() -> None:
    now = replace(P, role=Role.DECODE)
    fleet = told(of("prefill", P), of("decode", now))

    assert fleet.drop("decode") == [Joined(P.key, P), Left(now.key)]


def test_a_pod_with_addresses_of_two_families_is_one_engine() -> None:
    six = replace(P, host="fd00::1")

    assert SliceFleet().list([of("six", six, family=V6), of("four", P)]).members == {P.key: P}


def test_a_pod_that_has_only_an_ipv6_address_is_there() -> None:
    six = replace(P, host="fd00::1")

    assert SliceFleet().list([of("six", six, family=V6)]).members == {six.key: six}


def test_two_engines_of_a_pod_are_two() -> None:
    other = replace(P, port=8101)

    assert set(SliceFleet().list([of("a", P), of("b", other)]).members) == {P.key, other.key}


def test_addresses_of_two_families_that_name_no_pod_are_two_engines() -> None:
    """Nobody knows whether they are the same one."""
    four, six = replace(P, epoch=""), replace(P, host="fd00::1", epoch="")

    assert len(SliceFleet().list([of("a", four), of("b", six, family=V6)]).members) == 2


def test_a_slice_that_cannot_be_used_is_told_once() -> None:
    fleet, bad = told(of("a", P)), Slice("a", refused={"a": "its role is odd"})

    assert fleet.put(bad) == [Refused("a", "its role is odd"), Left(P.key)]
    assert fleet.put(bad) == []


def test_a_slice_that_can_be_used_again_is_refused_no_more() -> None:
    fleet = told(Slice("a", refused={"a": "its role is odd"}))

    assert fleet.put(of("a", P)) == [Joined(P.key, P), Left("a")]


def test_a_slice_that_was_never_seen_may_go() -> None:
    assert told(of("a", P)).drop("b") == []


def test_what_changes_at_once_in_many_is_one_list() -> None:
    """A slice has 100 engines, and a reader looks at all there are after each event."""
    many = [replace(P, host=f"10.0.1.{number}") for number in range(100)]
    fleet = told(of("a", P))

    assert fleet.put(of("b", *many)) == [Listed({each.key: each for each in (P, *many)})]
