import pytest

from pdgate.engine.pace import Faults, StepPace


@pytest.mark.parametrize(
    ("prompts", "decodes", "seconds"), [(0, 0, 0.0), (1, 0, 0.3), (0, 4, 0.1), (2, 2, 0.3)]
)
def test_a_step_takes_as_long_as_its_slowest_part(
    prompts: int, decodes: int, seconds: float
) -> None:
    assert (
        StepPace(prefill_seconds=0.3, token_seconds=0.1).least_seconds(prompts, decodes) == seconds
    )


@pytest.mark.parametrize(("read", "seconds"), [(0, 0.1), (40, 0.1), (160, 0.4)])
def test_prompt_tokens_ride_along_until_they_make_a_step_longer(read: int, seconds: float) -> None:
    pace = StepPace(token_seconds=0.1, read_seconds=0.0025)

    assert pace.least_seconds(prompts=0, decodes=4, read=read) == pytest.approx(seconds)


def test_faults_strike_at_their_rate() -> None:
    faults = Faults(fail_rate=0.25)

    assert 150 < sum(faults.strikes() for _ in range(1000)) < 350


def test_nothing_strikes_by_default() -> None:
    assert not any(Faults().strikes() for _ in range(1000))
