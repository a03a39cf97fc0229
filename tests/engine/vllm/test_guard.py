import pytest

from pdgate.engine.vllm.guard import guarded


def test_a_hook_that_raises_answers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    @guarded((0, False))
    def hook(number: int) -> tuple[int, bool]:
        return 10 // number, True

    assert hook(5) == (2, True)
    assert hook(0) == (0, False)
    assert "hook broke" in caplog.text
    assert "ZeroDivisionError" in caplog.text
