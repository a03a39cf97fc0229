import pytest

from pdgate.engine.vllm.guard import REPEAT_SECONDS, HookComplaints, guarded


def complain(complaints: HookComplaints, what: str) -> None:
    try:
        raise KeyError("a bug")
    except KeyError:
        complaints.about(what)


def test_what_breaks_on_every_step_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = HookComplaints(lambda: now)

    for _ in range(1000):
        complain(complaints, "build_connector_meta")
    complain(complaints, "get_finished")

    assert [record.message for record in caplog.records] == [
        "build_connector_meta broke",
        "get_finished broke",
    ]
    assert "a bug" in caplog.text

    now = REPEAT_SECONDS
    complain(complaints, "build_connector_meta")

    assert "build_connector_meta broke (and 999 times" in caplog.records[-1].message


def test_a_hook_that_raises_answers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    @guarded((0, False))
    def hook(number: int) -> tuple[int, bool]:
        return 10 // number, True

    assert hook(5) == (2, True)
    assert hook(0) == (0, False)
    assert "hook broke" in caplog.text
    assert "ZeroDivisionError" in caplog.text
