"""What condemns an engine, and what does not."""

import pytest

from pdgate.scheduling.health.liveness import Evidence, Verdict, verdict

SECONDS = 10.0


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        # Silence by itself, however long.
        (Evidence(silent=600), Verdict.ALIVE),
        (Evidence(silent=600, mute=9.9, still=9), Verdict.ALIVE),
        # A port that refuses.
        (Evidence(silent=2.9, refusing=1, broken_stream=True), Verdict.ALIVE),
        (Evidence(silent=3.1, refusing=1, broken_stream=True), Verdict.GONE),
        (Evidence(silent=9.9, refusing=9), Verdict.ALIVE),
        (Evidence(silent=10, refusing=9), Verdict.GONE),
        # ... where steps are slow by nature
        (Evidence(silent=7.9, refusing=5, broken_stream=True, step=2), Verdict.ALIVE),
        (Evidence(silent=8, refusing=5, broken_stream=True, step=2), Verdict.GONE),
        # A /health that is not answered; one that takes 8 s is.
        (Evidence(silent=600, mute=8), Verdict.ALIVE),
        (Evidence(silent=9, mute=10), Verdict.ALIVE),
        (Evidence(silent=11, mute=10), Verdict.FROZEN),
        # Counters that do not move.
        (Evidence(silent=12, still=10.5), Verdict.ALIVE),
        (Evidence(silent=12, still=11), Verdict.STUCK),
        # One prompt shows nothing until it is read.
        (Evidence(silent=60, mute=44, still=45, expected=10), Verdict.ALIVE),
        (Evidence(silent=60, mute=45, expected=10), Verdict.FROZEN),
        (Evidence(silent=60, still=46, expected=10), Verdict.STUCK),
        (Evidence(silent=60, mute=9.9, expected=1), Verdict.ALIVE),
        (Evidence(silent=60, mute=10, expected=1), Verdict.FROZEN),
        # So do long steps.
        (Evidence(silent=60, mute=24, still=25, step=5), Verdict.ALIVE),
        (Evidence(silent=60, still=26, step=5), Verdict.STUCK),
    ],
)
def test_only_all_of_the_evidence_together_condemns_an_engine(
    seen: Evidence, found: Verdict
) -> None:
    assert verdict(seen, SECONDS) is found
