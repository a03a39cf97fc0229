"""Accounts that replicas share in Redis, kept on this host as well, for when Redis is away.

    {pdgate:tenants}:of:<tenant>       hash: its account, what each process's calls hold, which news it has sent
    {pdgate:tenants}:alive:<process>   lease of a process: what one that died held is held no more

A call with a limit waits for one round trip when it begins, and for none at its end: what calls have taken is sent
every SEND_SECONDS, each piece of news with a number, so that none is counted twice. Does Redis not answer within
ANSWER_SECONDS, accounts of this host decide for AWAY_SECONDS, which know what this host's calls took; news
waits, added up, until Redis is back.

What a script may have done or not, when no answer comes, is left to a lease: the process goes on under another name.
The clock is that of Redis.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from redis.exceptions import RedisError

from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.cluster.redis_client import asked, client
from pdgate.gateway.security.token_limits import TokenLimit, Window
from pdgate.gateway.tenants import account
from pdgate.gateway.tenants.account import (
    NOTHING,
    AccountView,
    ReservedTokens,
    ReserveResult,
    TokenShortage,
    TokensTaken,
)
from pdgate.gateway.tenants.local import LocalAccounts
from pdgate.gateway.tenants.redis_script import SCRIPT

log = logging.getLogger(__name__)

PREFIX: Final = "{pdgate:tenants}"
ANSWER_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 1.0
SEND_SECONDS: Final = 0.05
LEASE_SECONDS: Final = 10.0
MOST_NEWS: Final = 8192
"""Tenants whose news waits while Redis is away; more are dropped, the oldest first."""
_KEPT_MS: Final = 400 * account.DAY_MS
"""How long an account is kept that nothing is added to."""

_WINDOWS: Final = {Window.MINUTE: 0, Window.DAY: 1, Window.TOTAL: 2}


@dataclass(slots=True)
class _News:
    """Unsent changes of one tenant, added up. `taken`: prompt, cached, generated, calls, counted, and the minutes."""

    taken: list[int] = field(default_factory=lambda: [0] * 8)
    held: list[int] = field(default_factory=lambda: [0, 0])
    holder: str = ""
    limits: tuple[TokenLimit, ...] = ()

    def add(self, other: "_News") -> None:
        for at, more in enumerate(other.taken):
            self.taken[at] += more
        for at, more in enumerate(other.held):
            self.held[at] += more


class RedisAccounts:
    """
    Attributes:
        away: Whether Redis did not answer last.
        local: Of this host.
    """

    def __init__(self, url: str, local: LocalAccounts) -> None:
        """Connects with the first call."""
        self.local = local
        self.away = False
        self._redis = client(url, ANSWER_SECONDS)
        self._script = self._redis.register_script(SCRIPT)
        self._holder = secrets.token_hex(8)
        self._sender = secrets.token_hex(8)
        self._number = 0
        self._again = 0.0
        self._news: dict[tuple[str, str], _News] = {}
        self._sending: tuple[int, tuple[str, str], _News] | None = None
        self._renewed = monotonic()

    async def reserve(
        self, name: str, limits: tuple[TokenLimit, ...], needs: tuple[int, int]
    ) -> ReserveResult:
        """Accounts of this host decide while Redis is away."""
        if monotonic() < self._again:
            return self.local.reserve(name, limits, needs)
        holder = self._holder
        try:
            found = await self._ask(name, holder, 0, needs, (0,) * 8, limits, check=True)
        except StoreAway as away:
            self._is_away(away)
            return self.local.reserve(name, limits, needs)
        except asyncio.CancelledError:
            # It may be reserved there by now.
            self._another_name()
            raise
        self._answers()
        refused, ms, left, held = (int(number) for number in found[:4])
        view = _view(found)
        if refused:
            seconds = None if ms < 0 else ms / 1000
            return ReserveResult(
                TokenShortage(limits[refused - 1], seconds, left, bool(held)), view
            )
        here = self.local.reserve(name, limits, needs, check=False)
        return ReserveResult(here.result, view, holder)

    def settle(
        self,
        name: str,
        limits: tuple[TokenLimit, ...],
        reserved: ReservedTokens,
        taken: TokensTaken,
        holder: str,
    ) -> None:
        """Sent with the next news. `holder`: as `reserve` said it."""
        self.local.settle(name, limits, reserved, taken)
        # What this host alone reserved is not among the minutes in Redis.
        there = reserved if holder else NOTHING
        news = _News(holder=holder, limits=limits)
        news.taken = [*taken, *account.minutes_of(limits, there, taken)]
        if holder and holder == self._holder:
            news.held = [-reserved.prompt, -reserved.generated]
        key = name, news.holder if any(news.held) else ""
        waiting = self._news.get(key)
        if waiting is None:
            if len(self._news) >= MOST_NEWS:
                self._news.pop(next(iter(self._news)))
            self._news[key] = news
        else:
            waiting.add(news)
            waiting.limits = limits

    async def look(self, name: str, limits: tuple[TokenLimit, ...]) -> AccountView:
        """View of the account; that of this host where Redis does not answer."""
        if monotonic() >= self._again:
            try:
                found = await self._ask(name, "", 0, (0, 0), (0,) * 8, limits, check=False)
            except StoreAway as away:
                self._is_away(away)
            else:
                return _view(found)
        return self.local.look(name, limits)

    async def run(self, ending: Callable[[], None] = lambda: None) -> None:
        """Send the news and renew the leases until cancelled. `ending`: what has news at the end does so."""
        try:
            while not is_cancelled():
                await asyncio.sleep(SEND_SECONDS)
                if monotonic() >= self._again:
                    await self._turn()
        finally:
            ending()
            with suppress(StoreAway, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(2 * ANSWER_SECONDS):
                    await self._send()
            with suppress(RedisError, OSError, TimeoutError):
                await self._redis.delete(f"{PREFIX}:alive:{self._holder}")
            await self._redis.aclose()

    async def _turn(self) -> None:
        try:
            await self._send()
            if monotonic() - self._renewed > LEASE_SECONDS / 4:
                for process in (self._holder, self._sender):
                    lease = int(LEASE_SECONDS * 1000)
                    await asked(self._redis.set(f"{PREFIX}:alive:{process}", 1, px=lease))
                self._renewed = monotonic()
        except StoreAway as away:
            self._is_away(away)
        else:
            self._answers()

    async def _send(self) -> None:
        """Raise StoreAway; what was not surely taken is sent again, under its number."""
        while self._sending is not None or self._news:
            if self._sending is None:
                key = next(iter(self._news))
                self._number += 1
                self._sending = self._number, key, self._news.pop(key)
            number, (name, holder), news = self._sending
            if holder != self._holder:
                # What was held under an earlier name ends with its lease.
                news.held, holder = [0, 0], ""
            needs = news.held[0], news.held[1]
            await self._ask(name, holder, number, needs, news.taken, news.limits, check=False)
            self._sending = None

    async def _ask(
        self,
        name: str,
        holder: str,
        number: int,
        needs: tuple[int, int],
        taken: Sequence[int],
        limits: tuple[TokenLimit, ...],
        *,
        check: bool,
    ) -> list[Any]:
        """Raise StoreAway."""
        said = [
            number_
            for limit in limits
            for number_ in (_WINDOWS[limit.window], limit.measure, limit.most)
        ]
        found: list[Any] = await asked(
            self._script(
                keys=[f"{PREFIX}:of:{name}", f"{PREFIX}:alive:{holder}"],
                args=[
                    *(holder, self._sender, number, int(check), int(LEASE_SECONDS * 1000)),
                    *(_KEPT_MS, *needs, *taken, *said),
                ],
            )
        )
        return found

    def _is_away(self, why: StoreAway) -> None:
        self._again = monotonic() + AWAY_SECONDS
        self._another_name()
        if not self.away:
            log.warning("what tenants take is counted on this host alone: %s", why)
        self.away = True

    def _answers(self) -> None:
        if self.away:
            log.info("what tenants take is shared again")
        self.away = False

    def _another_name(self) -> None:
        """For what is held from now on: what stands under the last one ends with its lease."""
        self._holder = secrets.token_hex(8)


def _view(found: Sequence[Any]) -> AccountView:
    """Of what the script answers."""
    return AccountView([int(word) for word in found[6:]], (int(found[4]), int(found[5])))
