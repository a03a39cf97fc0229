"""Retry decision when an attempt at a call has failed: one pure step.

    step(policy, accused, state, failure)  ->  Again(state)    another attempt, on the engines that are left
                                               Resume(state)   the stream goes on on another engine
                                               GiveUp(error)   what the client gets

execution.py runs the attempts and does what the step says; routing.py reads the state.

An engine that refused, or was too slow, is given up for this call. One that failed may have
stumbled over its peer, so where no other is left it gets a second chance, and one more without
a peer. A call on which two engines fail in the same way would fail on others as well, or end them:
the call is at fault, not the engines, unless all were accused so before, over another call, and no leg
has ended well there since. So an outage costs one call and not all of them. Where the hand-over may be
why, as prefill failed, or decode over KV, a decode engine that reads the prompt itself tells: only if it
fails in that way, too, it is the call. Engines that break off may be gone, so of these two are enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.protocols.call import Call
from pdgate.protocols.errors import (
    CallBreaksEngines,
    EngineBusy,
    EngineFailed,
    EngineFrozen,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    KvExpired,
)

CHANCES: Final = 2
"""Failures after which an engine is given up for a call."""


_RECOMPUTE: Final = (OnPrefillFailure.RECOMPUTE, OnPrefillFailure.RETRY_THEN_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What an operator allows.

    Attributes:
        max_attempts: For one call, the first one included.
        seconds: No attempt begins so long after the call came.
    """

    max_attempts: int
    on_prefill_failure: OnPrefillFailure
    seconds: float

    @property
    def decode_stands_in(self) -> bool:
        """Whether decode reads the prompt where no prefill engine can be had."""
        return self.on_prefill_failure in _RECOMPUTE


@dataclass(frozen=True, slots=True)
class RetryState:
    """What earlier attempts at a call have shown of engines.

    Attributes:
        failures: Engine -> how often it failed; CHANCES at least for one that is given up.
        unfit: Engines that failed with no peer involved, broke off before they had read for one, refused, or
            were too slow.
        broken: The engines that failed in the same way, and not over the same peer.
        first_cause: The first failure, which the client gets where no engine is left.
        without_prefill: A decode engine is to read the prompt itself, if one can.
        waited: For an engine that was frozen, so it goes only where legs have ended well lately, if it can choose.
        messages: Of failures -> engines, each with the prefill engine whose KV it used.
    """

    failures: Mapping[str, int]
    unfit: frozenset[str]
    broken: tuple[str, ...]
    first_cause: GatewayError | None
    without_prefill: bool
    waited: bool
    messages: Mapping[str, tuple[tuple[str, str], ...]]

    @property
    def failed(self) -> set[str]:
        return set(self.failures)

    @property
    def given_up(self) -> set[str]:
        return {engine for engine, failures in self.failures.items() if failures >= CHANCES}


FRESH: Final = RetryState({}, frozenset(), (), None, False, False, {})
"""Of a call's first attempt; most calls need no other."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one attempt failed.

    Attributes:
        prefill: The id of the engine that was to read the prompt for decode; empty for none.
        hands_over: The attempt's prompt was to be read by one engine for another.
        over_kv: It may be decode's, over the KV that it was to fetch.
        decode_reads: Decode engines of that protocol can read a prompt themselves.
        left: Attempts that may follow.
        seconds: Since the call came.
        committed: The client has a part of the answer.
        why_not_resumed: What keeps another engine from going on with the stream; empty for nothing, None
            where streams are not resumed.
    """

    error: GatewayError
    call: Call
    prefill: str
    hands_over: bool
    over_kv: bool
    decode_reads: bool
    left: int
    seconds: float
    committed: bool
    why_not_resumed: str | None = None


@dataclass(frozen=True, slots=True)
class Again:
    state: RetryState


@dataclass(frozen=True, slots=True)
class Resume:
    state: RetryState


@dataclass(frozen=True, slots=True)
class GiveUp:
    """
    Attributes:
        excused: Engines whose latest failures were the call's fault.
        at_hand_over: They were prefill's, or decode's over KV, of which a leg without says nothing.
    """

    error: GatewayError
    excused: tuple[str, ...] = ()
    at_hand_over: bool = False


def step(
    policy: RetryPolicy, accused: Mapping[str, bool], state: RetryState, failure: Failure
) -> Again | Resume | GiveUp:
    """`accused`: engines that were excused over an earlier call, without a success since -> whether at a hand-over."""
    error, prefill = failure.error, failure.prefill
    resumes = failure.committed and failure.why_not_resumed == ""
    is_prefills = bool(error.at) and error.at == prefill
    over = not resumes and (
        failure.committed
        or not error.worth_retrying
        or not (error.at or isinstance(error, KvExpired))
        or (is_prefills and policy.on_prefill_failure is OnPrefillFailure.FAIL)
        or not (failure.call.may_be_repeated or isinstance(error, EngineRefused))
    )
    if over:
        return GiveUp(error)
    over_kv, before = failure.over_kv, state
    ended = isinstance(error, EngineFailed) and error.broke_off
    alone_may_do = (is_prefills or over_kv) and not ended
    at_hand_over = alone_may_do and failure.hands_over
    state = noted(state, error, "" if is_prefills else prefill, at_hand_over)
    alike, broken = state.broken is not before.broken, state.broken
    # What an attempt without a hand-over would tell of a call on which two engines have failed.
    untold = failure.decode_reads and not before.without_prefill and (alone_may_do or resumes)
    without_prefill = (
        (is_prefills or over_kv)
        and policy.decode_stands_in
        and (
            failure.left == 1
            or (is_prefills and policy.on_prefill_failure is OnPrefillFailure.RECOMPUTE)
            or (alike and untold)
            # No other decode engine is left, and this one would be given up.
            or (over_kv and not ended and error.at in before.failures)
            # One engine has failed there already.
            or (resumes and over_kv)
        )
    )
    state = replace(
        state,
        failures=_with(state.failures, prefill, 1) if over_kv else state.failures,
        without_prefill=before.without_prefill or without_prefill,
    )
    if resumes:
        return Resume(state)
    # What fails alone as well is not what they were accused of at a hand-over, and answers alone do not clear.
    known = all(one in accused and (at_hand_over or not accused[one]) for one in broken)
    if alike and not (without_prefill and untold) and not known:
        message = f"two engines failed on this call in the same way ({error}), so no other is tried"
        return GiveUp(CallBreaksEngines(message), broken, at_hand_over)
    if failure.left <= 0 or failure.seconds >= policy.seconds:
        return GiveUp(error)
    return Again(state)


def noted(
    state: RetryState, error: GatewayError, prefill: str = "", at_hand_over: bool = False
) -> RetryState:
    """The state with one failure more. `prefill`: whose KV was used, if decode failed; `at_hand_over`: that may be why."""
    first_cause, at = state.first_cause or error, error.at
    if not at:
        return replace(state, first_cause=first_cause)
    # A decode that was too late for this KV need not be too late for another prompt's.
    final = isinstance(error, EngineRefused | EngineTooSlow) and not isinstance(error, KvExpired)
    messages, broken = state.messages, state.broken
    # Its subclasses are about the engine's own state: busy, slow, shutting down.
    if type(error) is EngineFailed:
        said = str(error)
        before = messages.get(said, ())
        messages = {**messages, said: (*before, (at, prefill))}
        if not prefill and (as_prefill := said.replace("decode", "prefill")) != said:
            # Without a peer decode does what prefill did.
            before = (*before, *messages.get(as_prefill, ()))
        # Two decode engines that fail over one prefill engine may both mean that one.
        others = [one for one, its in before if one != at and not (prefill and prefill == its)]
        if others:
            broken = (*dict.fromkeys(others), at)
    return RetryState(
        _with(state.failures, at, CHANCES if final else 1),
        state.unfit | {at} if final or not (prefill or at_hand_over) else state.unfit,
        broken,
        first_cause,
        state.without_prefill,
        state.waited or isinstance(error, EngineFrozen),
        messages,
    )


def _with(failures: Mapping[str, int], engine: str, weight: int) -> Mapping[str, int]:
    return {**failures, engine: failures.get(engine, 0) + weight}


def may_be_over_kv(error: GatewayError, prefill: str) -> bool:
    """Whether decode may have failed, or waited, over the KV of `prefill` that it was to fetch; its own load aside."""
    return (
        bool(prefill)
        and error.at != prefill
        and isinstance(error, EngineFailed)
        and not isinstance(error, EngineBusy | KvExpired)
    )
