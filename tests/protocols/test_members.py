"""Members that are as cheap as strings are members still."""

import pickle
from enum import Enum, EnumType, StrEnum

import pytest

from pdgate.protocols.members import plain_members


@plain_members
class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@plain_members
class Kind(Enum):
    ONE = 1


def test_they_are_found_without_a_descriptor() -> None:
    assert type.__getattribute__(Colour, "__dict__")["RED"] is Colour.RED
    assert Kind.__dict__["ONE"] is Kind(1)


def test_they_are_hashed_as_the_strings_that_they_equal() -> None:
    assert {Colour.RED: 1}["red"] == 1  # type: ignore[index]
    assert Colour.__hash__ is str.__hash__
    assert Kind.__hash__ is Enum.__hash__


def test_the_enumeration_is_one_still() -> None:
    assert isinstance(Colour, EnumType)
    assert list(Colour) == [Colour.RED, Colour.BLUE]
    assert (Colour("red"), Colour["RED"], Colour.RED.value) == (Colour.RED, Colour.RED, "red")
    assert pickle.loads(pickle.dumps(Colour.BLUE)) is Colour.BLUE
    with pytest.raises(AttributeError):
        Colour.RED = "other"  # type: ignore[misc]
