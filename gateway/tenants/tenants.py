"""Tenants: a call's reservation of tokens, from its beginning to its end, and what each tenant has taken.

    hold = await tenants.enter(key_state, call)     what it may take is reserved; or RateLimited, InsufficientQuota
    hold.call, hold.meter                           as engines get it; through which its answer passes
    tenants.settle(hold, record)                    what it took is counted

Calls of keys without limits of tokens reserve nothing, and their answers pass untouched: what engines say of
them is counted, by the key's state, and added to the accounts every TELL_SECONDS.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final, NamedTuple, Protocol

from pdgate.forwarders.record import Record
from pdgate.gateway.security.authenticator import Authenticator, KeyState
from pdgate.gateway.security.token_limits import TokenLimit, TokenLimits
from pdgate.gateway.tenants import account, headroom
from pdgate.gateway.tenants.account import (
    NOTHING,
    AccountView,
    ReservedTokens,
    ReserveResult,
    TokenShortage,
    TokensTaken,
)
from pdgate.gateway.tenants.local import LocalAccounts
from pdgate.gateway.tenants.meter import Meter, asking
from pdgate.protocols.bounds import MOST, Bounds, bounds_of
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.instance import PREFILL

TELL_SECONDS: Final = 0.5
UNSAID_TOKENS: Final = 4096
"""That a call may generate that says nothing, of a model whose engines do not say how long it is."""
TOKENS_A_SECOND: Final = 500
"""More than an engine generates of one answer: what an answer took whose client had left is at most that."""

Length = Callable[[str | None], int | None]
"""Model -> tokens of its longest context, where that is known."""


class Accounts(Protocol):
    """Accounts of tenants of several replicas; see in_redis.py.

    Attributes:
        away: Whether it does not answer, so that this host decides alone.
    """

    away: bool

    async def reserve(
        self, name: str, limits: tuple[TokenLimit, ...], needs: tuple[int, int]
    ) -> ReserveResult:
        """Reserve; a store that is away is never raised."""

    def settle(
        self,
        name: str,
        limits: tuple[TokenLimit, ...],
        reserved: ReservedTokens,
        taken: TokensTaken,
        holder: str,
    ) -> None: ...

    async def look(self, name: str, limits: tuple[TokenLimit, ...]) -> AccountView: ...

    async def run(self, ending: Callable[[], None]) -> None:
        """Run until cancelled; then call `ending`, and send what that said."""


class HeldTokens(NamedTuple):
    """What an account has reserved for one call.

    Attributes:
        limits: When it entered.
        holder: As account.ReserveResult has it.
        headers: What is left, for the client.
    """

    limits: tuple[TokenLimit, ...]
    reserved: ReservedTokens = NOTHING
    holder: str = ""
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class TokenHold:
    """What one call holds.

    Attributes:
        call: As engines get it.
        meter: Through which its answer passes.
        limits: When it entered.
        bounds: What it may take.
        holder: As account.ReserveResult has it.
    """

    call: Call
    meter: Meter
    key_state: KeyState
    limits: tuple[TokenLimit, ...]
    bounds: Bounds
    reserved: ReservedTokens
    holder: str


class Tenants:
    """
    Args:
        shared: Accounts of all replicas; None where there are those of this host alone.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        local: LocalAccounts,
        length_of: Length,
        shared: Accounts | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.authenticator = authenticator
        self.local = local
        self.shared = shared
        self._length_of = length_of
        self._clock = clock
        self._each: dict[TokenLimits, tuple[TokenLimit, ...]] = {}
        self._told: dict[str, tuple[int, int, int, int]] = {}

    def limits_of(self, key_state: KeyState) -> tuple[TokenLimit, ...]:
        limits = key_state.key.tokens
        found = self._each.get(limits)
        if found is None:
            if len(self._each) > 1024:
                self._each.clear()
            found = self._each[limits] = limits.each()
        return found

    async def enter(self, key_state: KeyState, call: Call) -> TokenHold:
        """Reserve for a call of a key with limits of tokens. Raise RateLimited, InsufficientQuota, BadRequest."""
        asked, client_asks = asking(call)
        limits = self.limits_of(key_state)
        bounds = bounds_of(call)
        generated = bounds.most_generated(self._unsaid(key_state, call, bounds))
        # Of what is more than the whole of each limit it does not matter how much that is.
        most = max(limit.most for limit in limits) + 1
        needs = min(bounds.prompt, most), min(generated, most)
        takes = bounds.prompt, generated
        held = await self.reserve(key_state, limits, needs, takes, unsaid=bounds.generated is None)
        meter = Meter(hides=not client_asks, headers=held.headers)
        return TokenHold(asked, meter, key_state, limits, bounds, held.reserved, held.holder)

    async def reserve(
        self,
        key_state: KeyState,
        limits: tuple[TokenLimit, ...],
        needs: tuple[int, int],
        takes: tuple[int, int],
        *,
        unsaid: bool = False,
    ) -> HeldTokens:
        """`takes`: what the call may take, for the client's headers. Raise RateLimited, InsufficientQuota."""
        if self.shared is None:
            answered = self.local.reserve(key_state.name, limits, needs)
        else:
            answered = await self.shared.reserve(key_state.name, limits, needs)
        headers = headroom.headers_of(key_state, limits, answered.view, int(self._clock() * 1000))
        if isinstance(answered.result, TokenShortage):
            key_state.refused["tokens"] += 1
            raise headroom.error_of(answered.result, takes, unsaid, headers)
        return HeldTokens(limits, answered.result, answered.holder, headers)

    def settle(self, hold: TokenHold, record: Record) -> None:
        """Settle the reservation; once, when the call is over."""
        state, reserved = hold.key_state, hold.reserved
        taken = taken_by(record, hold.bounds, reserved, hold.meter, state.key.tokens.count_cached)
        state.add(taken.prompt, taken.cached, taken.generated)
        self.give_back(state, HeldTokens(hold.limits, reserved, hold.holder), taken)

    def give_back(self, key_state: KeyState, held: HeldTokens, taken: TokensTaken) -> None:
        """What was taken counts, in place of what was held."""
        if self.shared is None:
            self.local.settle(key_state.name, held.limits, held.reserved, taken)
        else:
            self.shared.settle(key_state.name, held.limits, held.reserved, taken, held.holder)

    async def run(self) -> None:
        """Add what keys without limits took to the accounts, until cancelled."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self.tell()

    def tell(self) -> None:
        states = {one.key.state_id: one for one in self.authenticator.states()}
        for state_id, state in states.items():
            now = state.calls, state.prompt, state.cached, state.generated
            before = self._told.get(state_id, (0, 0, 0, 0))
            if now == before:
                continue
            if any(new < old for new, old in zip(now, before, strict=True)):
                # Another state of that name: it counts from nothing.
                before = (0, 0, 0, 0)
            self._told[state_id] = now
            if self.limits_of(state):
                # Counted at the end of each call.
                continue
            calls, prompt, cached, generated = map(int.__sub__, now, before)
            taken = TokensTaken(prompt, cached, generated, calls, prompt)
            self.give_back(state, HeldTokens(()), taken)
        for state_id in self._told.keys() - states.keys():
            del self._told[state_id]

    async def usage(self, key_state: KeyState) -> dict[str, Any]:
        """Usage of one tenant, for operators: what it took, what its limits are, and what is left."""
        limits = self.limits_of(key_state)
        if self.shared is None:
            view = self.local.look(key_state.name, limits)
        else:
            view = await self.shared.look(key_state.name, limits)
        return {
            "today": _kinds(view, account.OF_DAY),
            "total": _kinds(view, account.OF_ALL),
            "running": key_state.running,
            "held": {"prompt": view.held[0], "generated": view.held[1]},
            "limits": [
                {
                    "limit": limit.name,
                    "most": limit.most,
                    "used": account.used(view.numbers, limit),
                    "remaining": account.left(view, limit),
                }
                for limit in limits
            ],
            **_calls(key_state),
        }

    def _unsaid(self, key_state: KeyState, call: Call, bounds: Bounds) -> int:
        if bounds.generated is not None:
            return 0
        assumed = key_state.key.tokens.assumed_tokens
        if assumed is not None:
            return assumed
        length = self._length_of(call.model)
        return UNSAID_TOKENS if length is None else max(1, length - bounds.prompt)


def taken_by(
    record: Record, bounds: Bounds, reserved: ReservedTokens, meter: Meter, count_cached: bool
) -> TokensTaken:
    """What a call took that is over: as its engine said it, else by what passed of it."""
    usage, began = record.usage, record.committed is not None
    left = record.outcome == "client_gone"
    served = began or left
    if not record.legs or not (served or record.outcome == "ok"):
        # No engine was asked, or none had an answer: what that cost is not the client's.
        return TokensTaken()
    prompt = bounds.prompt if usage is None or usage.prompt is None else min(usage.prompt, MOST)
    cached = 0 if usage is None else min(usage.cached or 0, prompt)
    if usage is not None and usage.generated is not None:
        generated = min(usage.generated, MOST)
    elif record.call.streams and began:
        # One says the role, or why it ends.
        generated = max(0, meter.events - 1)
    elif left:
        generated = min(reserved.generated, _most_since(record) * max(1, bounds.answers))
    else:
        generated = 0
    counted = prompt if count_cached else max(0, prompt - cached)
    return TokensTaken(prompt, cached, generated, 1, counted)


def _most_since(record: Record) -> int:
    """Tokens that an engine can have generated of an answer that it was asked for, at most."""
    asked = [leg.started for leg in record.legs if leg.role is not PREFILL]
    if not asked or record.ended is None:
        return 0
    return int((record.ended - asked[-1]) * TOKENS_A_SECOND)


def _kinds(view: AccountView, first: int) -> Mapping[str, int]:
    names = ("prompt", "cached", "generated", "calls")
    return dict(zip(names, view.numbers[first : first + len(names)], strict=True))


def _calls(key_state: KeyState) -> dict[str, Any]:
    key = key_state.key
    said = {
        "models": sorted(key.models),
        "priority": key.priority,
        "max_calls": key.max_calls,
        "calls_per_minute": key.calls_per_minute,
    }
    return {name: found for name, found in said.items() if found not in (None, [])}
