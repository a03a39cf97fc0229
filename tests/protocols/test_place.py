"""Which engines are near each other, by what was said of where they run."""

import pytest

from pdgate.protocols.place import NOWHERE, Distance, Place

HERE = Place("h1", "r1", "z1")


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        (HERE, Distance.SAME_HOST),
        (Place("h1"), Distance.SAME_HOST),
        (Place("h2", "r1", "z1"), Distance.SAME_RACK),
        (Place("h2", "r1"), Distance.SAME_RACK),
        (Place("h2", "r2", "z1"), Distance.SAME_ZONE),
        (Place("h2", "r1", "z2"), Distance.FAR),
        (Place("h2"), Distance.FAR),
        (NOWHERE, Distance.FAR),
    ],
)
def test_the_smallest_that_both_are_in_counts(other: Place, distance: Distance) -> None:
    assert HERE.distance(other) is distance
    assert other.distance(HERE) is distance


def test_what_nobody_said_is_no_neighbourhood() -> None:
    assert NOWHERE.distance(NOWHERE) is Distance.FAR
