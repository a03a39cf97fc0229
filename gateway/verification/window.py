"""A window: what one decode engine was given and what it counted, over one stretch of time.

    given     calls handed over with KV; calls whose prompt it was to compute itself (whole)
    counted   prompt tokens by what gave their KV, requests that got their first token

An engine that takes over KV computes one token of a prompt at most, the last (vLLM 0.32.0 with
NIXL and Mooncake: none; with our connector: one). So whatever an engine counts as computed
beyond one token per request was computed twice, unless it was to be computed: a whole
call of ours, or another client's call. (`spare` instead of one token, where a protocol hands over whole
blocks only.) Then it is not known which it was:

    computed <= requests                     verified, of any client
    ... beyond, and only ours, all split     the surplus was recomputed
    ... beyond, and nothing arrived at all   recomputed, if the next page still says so
    ... beyond, otherwise                    unverifiable

A call that has just been answered may be missing on a page, so a window without counted
tokens, or with calls of which nothing is known yet, stays open until the next page.
"""

from dataclasses import dataclass
from enum import StrEnum

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.scheduling.endpoint import Endpoint

MATERIAL_SHARE = 0.05
"""Of the prompt tokens, recomputed: less is an accident (a load that failed), not a fault of setup."""


class WindowResult(StrEnum):
    VERIFIED = "verified"
    RECOMPUTED = "recomputed"
    UNVERIFIABLE = "unverifiable"


@dataclass(frozen=True, slots=True)
class Given:
    """The gateway's account of one engine at one moment.

    Attributes:
        handed_over, whole: Calls so far, as in Endpoint.
        calls: In flight.
        reads: Some of these are whole calls whose prompt may not be computed yet.
    """

    handed_over: int = 0
    whole: int = 0
    calls: int = 0
    reads: bool = False

    def is_after(self, other: "Given") -> bool:
        """The other is of an endpoint that took this one's place: accounts only grow."""
        return self.handed_over > other.handed_over or self.whole > other.whole

    @classmethod
    def to(cls, endpoint: Endpoint) -> "Given":
        return cls(
            endpoint.handed_over,
            endpoint.whole_calls,
            endpoint.own_calls,
            endpoint.own_unread_tokens > 0 or endpoint.presumed > 0,
        )


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """
    Attributes:
        result: None if the engine was given nothing to verify.
        verified, recomputed, unverifiable: Prompt tokens.
    """

    result: WindowResult | None
    verified: float = 0
    recomputed: float = 0
    unverifiable: float = 0


NOTHING = WindowVerdict(None)


def judge(
    grew: EngineCounters, before: Given, now: Given, *, doubted: bool = False, spare: float = 1
) -> WindowVerdict | None:
    """Return the verdict; None to look again at the next page, with the window left open.

    `doubted`: this is such a second look. `spare`: tokens of each prompt that decode computes by design.
    """
    handed_over, whole = now.handed_over - before.handed_over, now.whole - before.whole
    if grew.computed is None or grew.cached is None or grew.transferred is None:
        return WindowVerdict(WindowResult.UNVERIFIABLE) if handed_over else NOTHING
    # What decode chose to compute was not computed twice (decode-first, where decode decides).
    computed = grew.computed - (grew.chosen or 0)
    arrived = grew.transferred + grew.cached
    counted = computed + arrived
    # Answers that are no stream are known to us only when they end, long after their prompt.
    if not counted or not handed_over:
        return None if handed_over or now.calls else NOTHING
    possible = handed_over + whole + before.calls + now.calls
    requests = possible if grew.first_tokens is None else grew.first_tokens
    surplus = max(0.0, computed - requests * spare)
    if not surplus:
        if not arrived:
            # Prompts of one token each.
            return WindowVerdict(WindowResult.UNVERIFIABLE, unverifiable=counted)
        return WindowVerdict(WindowResult.VERIFIED, verified=counted)
    # Those in flight may have been counted, or another client's in their place; but no other
    # client can be why nothing came for ours.
    ours = requests <= handed_over or (requests <= possible and not arrived)
    only_ours = whole == 0 and not before.reads and ours
    if only_ours:
        material = surplus > MATERIAL_SHARE * counted
        result = WindowResult.RECOMPUTED if material else WindowResult.VERIFIED
        return WindowVerdict(result, verified=counted - surplus, recomputed=surplus)
    if not arrived:
        return WindowVerdict(WindowResult.RECOMPUTED, unverifiable=counted) if doubted else None
    return WindowVerdict(
        WindowResult.UNVERIFIABLE,
        verified=grew.transferred,
        unverifiable=counted - grew.transferred,
    )
