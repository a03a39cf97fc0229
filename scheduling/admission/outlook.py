"""How soon a call's prompt would be read if it began now, wherever that is soonest."""

from pdgate.protocols.instance import Role
from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.lineup import Lineup


def seconds_to_read(lineup: Lineup, prompt_tokens: int) -> float | None:
    """None for what nobody can know: there is no engine, or one that has shown nothing yet.

    Whatever of the prompt is cached somewhere is not known here, so this is the most that it takes.
    """
    least: float | None = None
    for candidate in lineup.up[Role.PREFILL if lineup.disaggregated else Role.PLAIN]:
        expected = _seconds(candidate, prompt_tokens)
        if expected is None:
            return None
        if least is None or expected < least:
            least = expected
    return least


def _seconds(candidate: Candidate, prompt_tokens: int) -> float | None:
    return candidate.predicts.prefill_seconds(
        unread_tokens_there(candidate) + prompt_tokens,
        candidate.unread_squares + prompt_tokens * prompt_tokens,
    )
