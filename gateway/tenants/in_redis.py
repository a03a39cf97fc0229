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

SCRIPT: Final = """
local key, alive = KEYS[1], KEYS[2]
local holder, sender, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local check, lease, kept = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local prompt, generated = tonumber(ARGV[7]), tonumber(ARGV[8])
local took, at = {}, 9
for word = 1, 8 do took[word] = tonumber(ARGV[at]); at = at + 1 end
local limits = {}
while ARGV[at] do
  table.insert(limits, {tonumber(ARGV[at]), tonumber(ARGV[at + 1]) + 1, tonumber(ARGV[at + 2])})
  at = at + 3
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local words, held_prompt, held_generated, sent = {}, 0, 0, 0
for word = 1, 15 do words[word] = 0 end
local found = redis.call('HGETALL', key)
for i = 1, #found, 2 do
  local name, value = found[i], found[i + 1]
  local kind = string.sub(name, 1, 2)
  if kind == 'w:' then
    local word = tonumber(string.sub(name, 3))
    if word and word >= 1 and word <= 15 then words[word] = tonumber(value) or 0 end
  elseif kind == 'p:' or kind == 'g:' or kind == 'n:' then
    local process = string.sub(name, 3)
    if process ~= holder and process ~= sender
      and redis.call('EXISTS', '{pdgate:tenants}:alive:' .. process) == 0 then
      redis.call('HDEL', key, name)
    elseif kind == 'p:' then held_prompt = held_prompt + (tonumber(value) or 0)
    elseif kind == 'g:' then held_generated = held_generated + (tonumber(value) or 0)
    elseif process == sender then sent = tonumber(value) or 0 end
  end
end
local passed = math.max(0, now - words[1])
words[1] = now
local spent = {0, 0, 0}
for _, limit in ipairs(limits) do
  if limit[1] == 0 then
    spent[limit[2]] = math.max(0, words[1 + limit[2]] - math.floor(limit[3] * passed / 60))
  end
end
for measure = 1, 3 do words[1 + measure] = spent[measure] end
local day = math.floor(now / 86400000)
if words[5] ~= day then
  words[5] = day
  for word = 6, 10 do words[word] = 0 end
end
local need = {prompt + generated, prompt, generated}
local refused, seconds, left, holds = 0, 0, 0, 0
if check then
  local holding = {held_prompt + held_generated, held_prompt, held_generated}
  for i, limit in ipairs(limits) do
    local window, measure, most = limit[1], limit[2], limit[3]
    local wanted = need[measure]
    if wanted > most then wanted = math.floor((most + 1) / 2) end
    local used
    if window == 0 then used = math.ceil(words[1 + measure] / 1000)
    else
      local first = window == 1 and 6 or 11
      local of = {words[first + 4] + words[first + 2], words[first + 4], words[first + 2]}
      used = of[measure]
    end
    left = most - used
    if window == 0 and wanted > left then
      refused, seconds = i, math.ceil((wanted - left) * 60000 / most)
    elseif window > 0 and wanted > left then
      refused, seconds = i, window == 1 and 86400000 - now % 86400000 or -1
    elseif window > 0 and wanted > left - holding[measure] then
      refused, seconds, left, holds = i, 1000, left - holding[measure], 1
    end
    if refused > 0 then break end
  end
end
if refused == 0 then
  if number == 0 or number > sent then
    for measure = 1, 3 do
      words[1 + measure] = math.min(math.max(0, words[1 + measure] + took[5 + measure]), 2^53)
    end
    for i = 1, 5 do
      words[5 + i] = math.min(words[5 + i] + took[i], 2^53)
      words[10 + i] = math.min(words[10 + i] + took[i], 2^53)
    end
    if number > 0 then redis.call('HSET', key, 'n:' .. sender, number) end
    if holder ~= '' then
      for _, limit in ipairs(limits) do
        if limit[1] == 0 and number == 0 then
          words[1 + limit[2]] = words[1 + limit[2]] + math.min(need[limit[2]], limit[3]) * 1000
        end
      end
      if prompt ~= 0 then redis.call('HINCRBY', key, 'p:' .. holder, prompt) end
      if generated ~= 0 then redis.call('HINCRBY', key, 'g:' .. holder, generated) end
      held_prompt, held_generated = held_prompt + prompt, held_generated + generated
    end
  end
  if number > 0 or holder ~= '' then
    for word = 1, 15 do redis.call('HSET', key, 'w:' .. word, string.format('%.0f', words[word])) end
    redis.call('PEXPIRE', key, kept)
  end
end
if holder ~= '' then redis.call('SET', alive, '1', 'PX', lease) end
if number > 0 then redis.call('SET', '{pdgate:tenants}:alive:' .. sender, '1', 'PX', lease) end
local answer = {refused, seconds, math.max(0, left), holds, held_prompt, held_generated}
for word = 1, 15 do table.insert(answer, string.format('%.0f', words[word])) end
return answer
"""
"""ARGV: who holds (empty: nothing is held), who sends news, its number (0: none); whether limits refuse; leases in ms;
what is held more (less, with news); what was taken: five words of account.TokensTaken and thousandths of three minutes; and
window, measure and most of each limit. Any client of the Redis can write there what it likes: what is no number is 0."""


@dataclass(slots=True)
class _News:
    """Of one tenant, added up. `taken`: prompt, cached, generated, calls, counted, and the minutes."""

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
        """That of this host where Redis does not answer."""
        if monotonic() >= self._again:
            try:
                found = await self._ask(name, "", 0, (0, 0), (0,) * 8, limits, check=False)
            except StoreAway as away:
                self._is_away(away)
            else:
                return _view(found)
        return self.local.look(name, limits)

    async def run(self, ending: Callable[[], None] = lambda: None) -> None:
        """Until cancelled: sends the news, and renews the leases. `ending`: what has news at the end does so."""
        task = asyncio.current_task()
        assert task is not None
        try:
            # Asked for, as redis-py can swallow a cancellation that hits it while it connects.
            while not task.cancelling():
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
