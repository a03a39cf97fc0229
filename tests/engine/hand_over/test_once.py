import pytest

from pdgate.engine.hand_over.once import Once


def test_the_second_use_is_refused() -> None:
    once = Once()
    once.use("a")
    once.use("b")

    with pytest.raises(ValueError, match="'a' was used before"):
        once.use("a")


def test_only_the_latest_are_remembered() -> None:
    once = Once(most=2)
    for id in "abc":
        once.use(id)

    once.use("a")
    with pytest.raises(ValueError, match="used before"):
        once.use("c")
