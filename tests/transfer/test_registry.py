import pytest

from pdgate.transfer import registry


def test_ours_are_declared() -> None:
    assert {"shm", "tcp"} <= set(registry.names())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"'smoke'.*shm, tcp"):
        registry.load("smoke")
