"""Automatic rule: the way that is expected to keep callers waiting for less.

    split   prefill reads what waits there and this prompt, then decode takes the KV over
    local   decode reads what it has to read already and this prompt; and every answer that it
            is giving ends later by what the prompt adds to its steps, and those that begin
            meanwhile by half of it. So does the engine that was chosen to read, if it has both roles

The first is learnt from how long first tokens took (`Rate`), and so has in it that a prompt
waits for the step that runs. That is no loss to others: what they lose is learnt from how
fast the engine's streams go on while it reads and while it does not (`StepTime`). All of it
lately, of the same engines, in estimated tokens. Until enough was seen of both ways,
thresholds decide. And since a way that is never taken is never measured again, one call in
LOOK_EVERY goes the other way: locally only if its prompt is short or a decode engine is idle,
so that no stream is held up for a look.

Only streams tell when an answer begins and how it goes on. Other calls teach nothing of
decode, but are decided for alike, and count as held up: they wait for the same tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.disaggregation.decision import MEASURING, SOONER, Decision, Taken
from pdgate.scheduling.disaggregation.rules import (
    NOTHING_CACHED,
    SplitRule,
    UncachedTokensAbove,
    uncached_tokens,
)
from pdgate.scheduling.endpoint import Endpoint

LOOK_EVERY: Final = 50


class Auto(SplitRule):
    watches: ClassVar = True
    reads_cached: ClassVar = True

    def __init__(self, thresholds: UncachedTokensAbove) -> None:
        """`thresholds`: what decides until both ways are known."""
        self._thresholds = thresholds
        self._rows = {True: (Taken.SPLIT, 0), False: (Taken.SPLIT, 0)}
        """Of short prompts and of others: what was decided last, and how often in a row."""

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        split = split_seconds(call, prefill, decodes)
        local = _least_local(call, prefill, decodes, cached, may_keep)
        short = uncached_tokens(call, decodes, cached) <= self._thresholds.tokens
        if split is None or local is None:
            for way, known in ((Taken.SPLIT, split), (Taken.LOCAL, local)):
                if known is None and _may_look(way, short, call, prefill, decodes):
                    return Decision(way, MEASURING, among=_looked_at(way, decodes))
            return self._thresholds.decide(call, prefill, decodes, cached, may_keep)
        waits, holds_up, at = local
        sooner = Taken.LOCAL if waits + holds_up < split else Taken.SPLIT
        last, times = self._rows[short]
        times = times + 1 if sooner is last else 1
        self._rows[short] = sooner, times
        if times >= LOOK_EVERY:
            other = Taken.SPLIT if sooner is Taken.LOCAL else Taken.LOCAL
            if _may_look(other, short, call, prefill, decodes):
                self._rows[short] = sooner, 0
                among = _looked_at(other, decodes)
                return Decision(other, MEASURING, split, waits, holds_up, among)
        named = cached or prefill.serves(Role.DECODE)
        among = (at,) if sooner is Taken.LOCAL and named else ()
        return Decision(sooner, SOONER, split, waits, holds_up, among)

    def would_split(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> bool:
        split = split_seconds(call, prefill, decodes)
        local = _least_local(call, prefill, decodes, cached, may_keep)
        if split is None or local is None:
            # Nothing counts while not both are known.
            return self.decide(call, prefill, decodes, cached, may_keep).taken is Taken.SPLIT
        waits, holds_up, _ = local
        return waits + holds_up >= split


def _may_look(
    way: Taken, short: bool, call: Call, prefill: Endpoint, decodes: Sequence[Endpoint]
) -> bool:
    """Whether a call teaches something of this way, and disturbs no other call there."""
    if not call.streams:
        return False
    if way is Taken.SPLIT:
        return prefill.calls == 1
    if short:
        return not any(decode.unread_tokens for decode in decodes)
    return not all(decode.calls for decode in decodes)


def _looked_at(way: Taken, decodes: Sequence[Endpoint]) -> tuple[str, ...]:
    """Decode engines to which a call goes for a look: the idle ones, if there are any."""
    if way is Taken.SPLIT:
        return ()
    idle = tuple(decode.instance.id for decode in decodes if not decode.calls)
    return idle or tuple(decode.instance.id for decode in decodes)


def split_seconds(call: Call, prefill: Endpoint, decodes: Sequence[Endpoint]) -> float | None:
    """Seconds until the first token, if prefill reads the prompt; the call waits there already."""
    unread = unread_tokens_there(prefill)
    reading = prefill.latency.prefill_seconds(unread, prefill.unread_squares)
    loading = _least(decode.latency.loading_seconds(call.prompt_tokens) for decode in decodes)
    return None if reading is None or loading is None else reading + loading


def least_local(
    call: Call, decodes: Sequence[Endpoint], cached: Mapping[str, int] = NOTHING_CACHED
) -> tuple[float, float, str] | None:
    """Seconds at the decode engine that costs least: until the first token, of others held up; and its id."""
    costs = (
        _local(call.prompt_tokens - cached.get(decode.instance.id, 0), decode) for decode in decodes
    )
    return min(filter(None, costs), key=lambda cost: cost[0] + cost[1], default=None)


def _least_local(
    call: Call,
    prefill: Endpoint,
    decodes: Sequence[Endpoint],
    cached: Mapping[str, int],
    may_keep: bool,
) -> tuple[float, float, str] | None:
    """The same, with the engine that would read it for others, if it may keep it and is to answer as well."""
    found = least_local(call, decodes, cached)
    if not (may_keep and prefill.serves(Role.DECODE)):
        return found
    to_read = call.prompt_tokens - cached.get(prefill.instance.id, 0)
    there = _local(to_read, prefill, has_it=True)
    costs = filter(None, (there, found))
    return min(costs, key=lambda cost: cost[0] + cost[1], default=None)


def _local(
    to_read: int, decode: Endpoint, *, has_it: bool = False
) -> tuple[float, float, str] | None:
    """`has_it`: the call is in its account already, with what it has to read of it."""
    unread, squares = decode.unread_tokens, decode.unread_squares
    if not has_it:
        unread, squares = unread + to_read, squares + to_read * to_read
    waits = decode.latency.prefill_seconds(unread, squares)
    if waits is None:
        return None
    # A call that is there but not answered yet comes, on the average, in the middle of it.
    held_up = decode.answering + (decode.calls - has_it - decode.answering) / 2
    longer = decode.latency.longer_seconds(min(to_read, unread))
    return waits, held_up * longer, decode.instance.id


def _least(expected: Iterable[float | None]) -> float | None:
    return min((seconds for seconds in expected if seconds is not None), default=None)
