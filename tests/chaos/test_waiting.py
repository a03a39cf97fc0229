"""Waiting ends with what was waited for, or says what never came."""

import pytest

from pdgate.chaos.waiting import NeverHappened, until


async def test_it_returns_the_first_answer_that_is_true() -> None:
    answers = iter([0, 0, 3])

    async def question() -> int:
        return next(answers)

    assert await until(question, "three") == 3


async def test_what_never_comes_is_named() -> None:
    async def never() -> bool:
        return False

    with pytest.raises(NeverHappened, match="the moon"):
        await until(never, "the moon", within_seconds=0.05)
