"""What condemns an engine, and what does not."""

import pytest

from pdgate.scheduling.health.liveness import Evidence, LivenessVerdict, verdict

SECONDS = 10.0


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        # Silence by itself, however long.
        (Evidence(silent=600), LivenessVerdict.ALIVE),
        (Evidence(silent=600, mute=9.9, still=9), LivenessVerdict.ALIVE),
        # A port that refuses.
        (Evidence(silent=2.9, refusing=1, broken_stream=True), LivenessVerdict.ALIVE),
        (Evidence(silent=3.1, refusing=1, broken_stream=True), LivenessVerdict.GONE),
        (Evidence(silent=9.9, refusing=9), LivenessVerdict.ALIVE),
        (Evidence(silent=10, refusing=9), LivenessVerdict.GONE),
        # ... where steps are slow by nature
        (Evidence(silent=7.9, refusing=5, broken_stream=True, step=2), LivenessVerdict.ALIVE),
        (Evidence(silent=8, refusing=5, broken_stream=True, step=2), LivenessVerdict.GONE),
        # A /health that is not answered; one that takes 8 s is.
        (Evidence(silent=600, mute=8), LivenessVerdict.ALIVE),
        (Evidence(silent=9, mute=10), LivenessVerdict.ALIVE),
        (Evidence(silent=11, mute=10), LivenessVerdict.FROZEN),
        # Counters that do not move.
        (Evidence(silent=12, still=9.9), LivenessVerdict.ALIVE),
        (Evidence(silent=10.9, still=10), LivenessVerdict.ALIVE),
        (Evidence(silent=11, still=10), LivenessVerdict.STUCK),
        # One prompt shows nothing until it is read.
        (Evidence(silent=60, mute=44, still=44, expected=10), LivenessVerdict.ALIVE),
        (Evidence(silent=60, mute=45, expected=10), LivenessVerdict.FROZEN),
        (Evidence(silent=60, still=45, expected=10), LivenessVerdict.STUCK),
        (Evidence(silent=60, mute=9.9, expected=1), LivenessVerdict.ALIVE),
        (Evidence(silent=60, mute=10, expected=1), LivenessVerdict.FROZEN),
        # So do long steps.
        (Evidence(silent=60, mute=24, still=24, step=5), LivenessVerdict.ALIVE),
        (Evidence(silent=60, still=25, step=5), LivenessVerdict.STUCK),
    ],
)
def test_only_all_of_the_evidence_together_condemns_an_engine(
    seen: Evidence, found: LivenessVerdict
) -> None:
    assert verdict(seen, SECONDS) is found
